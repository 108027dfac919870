"""Turn Kafka's records into the writer's rows: unchanged, or through the user's SQL.

Strategy: Spark analyses the SQL over an empty relation `records`, so that names, types and positions in messages are Spark's.
The checks work on the plan: one SELECT over `records` with an optional WHERE is allowed. Its expressions are then taken
out of the analysed plan and put into projections of our own, so that

* every record leaves a row: one that the filter drops becomes a delete, and positions always advance;
* a tombstone or a record that cannot be decoded never reaches the user's expressions;
* the query runs in Real-Time Mode, which supports projections and little else.

An aggregate view has the inputs of its columns in place of the stored JSON; aggregate_inputs.py compiles them.

Each projection reads what the one below it computed, which also keeps Spark from parsing a record's JSON twice.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from queryable_app.config.aggregate_spec import AggregateSpec
from queryable_app.ingest.aggregate_inputs import ResolvedInput, compile_inputs
from queryable_app.ingest.catalyst import (
    SqlError,
    analysed,
    check_expression,
    column,
    each,
    java_function,
    message,
    name_of,
    no_rows,
    nodes,
    output,
    references,
)
from queryable_app.ingest.decoded_records import HEADERS_TYPE, View, decode_records, value_schema
from queryable_app.ingest.group_keys import group_key
from queryable_app.ingest.java_classes import java_class
from queryable_app.ingest.value_decoders import value_decoder

RELATION: Final = "records"
_relation_lock: Final = threading.Lock()  # the queries of a pod's workers share the session, and so this name
COLUMNS: Final = ("key", "value", "headers", "timestamp", "partition", "offset")
_SOURCE_SCHEMA: Final = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("headers", HEADERS_TYPE),
        StructField("timestamp", TimestampType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
    ]
)

_ROWS_MAX: Final = 65_535  # of a record, as an envelope numbers them
_ONE_SELECT: Final = (
    "write one SELECT … FROM records with an optional WHERE: it gives one row for each record"
)
_AGGREGATES: Final = "counts, sums and the like are computed by view.aggregate; " + _ONE_SELECT
_REFUSED: Final = {
    "Aggregate": ("aggregates (GROUP BY, count, sum, …)", _AGGREGATES),
    "UnresolvedHaving": ("HAVING", _AGGREGATES),
    "Distinct": ("DISTINCT", f"the view holds one row for each key anyway; {_ONE_SELECT}"),
    "Deduplicate": ("DISTINCT", f"the view holds one row for each key anyway; {_ONE_SELECT}"),
    "Sort": ("ORDER BY", f"rows are sorted by key when they are read; {_ONE_SELECT}"),
    "GlobalLimit": ("LIMIT", f"limit what is read with ?limit=; {_ONE_SELECT}"),
    "LocalLimit": ("LIMIT", f"limit what is read with ?limit=; {_ONE_SELECT}"),
    "Offset": ("OFFSET", f"read on with a cursor; {_ONE_SELECT}"),
    "Window": ("window functions", _AGGREGATES),
    "WithWindowDefinition": ("window functions", _AGGREGATES),
    "Join": ("joins", _ONE_SELECT),
    "UnresolvedWith": ("WITH", _ONE_SELECT),
    "Union": ("UNION", _ONE_SELECT),
    "Intersect": ("INTERSECT", _ONE_SELECT),
    "Except": ("EXCEPT", _ONE_SELECT),
    "Generate": ("functions that make several rows, such as explode", _ONE_SELECT),
    "Sample": ("TABLESAMPLE", _ONE_SELECT),
    "Pivot": ("PIVOT", _ONE_SELECT),
}


@dataclass(frozen=True, slots=True)
class Projection:
    """Hold the columns that RowWriter expects, computed from those of the Kafka source."""

    frame: DataFrame
    reads_headers: bool
    inputs: tuple[ResolvedInput, ...] = ()
    """What an aggregate view computes; their columns follow the event time."""
    group_key_format: str = ""
    """The format of the key, where it is that of a group of other columns than the record key."""
    makes_rows: bool = False
    """Whether a record may give several rows. The last two columns then are the row's index and the number of rows."""

    columns: tuple[tuple[str, str], ...] = ()
    """Names and SQL types: what a transform stores, or what the expressions of an aggregate view may read."""


@dataclass(frozen=True, slots=True)
class _Select:
    """Hold the user's SELECT as expressions over the columns of a decoded source."""

    outputs: tuple[tuple[str, Any], ...]  # name and Catalyst expression
    keys: frozenset[int]  # the places of the record's key in the outputs
    condition: Any | None
    reads_headers: bool
    explode: Any | None = None
    """Spark's node for a column `explode(array)`, which makes a row of each element."""

    @property
    def values(self) -> list[tuple[str, Any]]:
        """Return the outputs without the key."""
        return [each for place, each in enumerate(self.outputs) if place not in self.keys]


def check_view(session: SparkSession, view: View) -> Projection:
    """Refuse SQL that cannot be run, before a query starts. Return the projection of no records."""
    return project(session, no_rows(session, _SOURCE_SCHEMA), view)


def project(session: SparkSession, source: DataFrame, view: View) -> Projection:
    """Return the columns that RowWriter expects, computed from those of the Kafka source."""
    if view.aggregate is not None:
        return _aggregate_rows(session, source, view, view.aggregate)
    if view.key_by:
        return _keyed_rows(session, source, view)
    timestamp_ms = f.unix_millis("timestamp").alias("timestamp_ms")
    if view.sql is None:
        value_schema(session, view)  # it can be parsed without a query
        value_decoder(session, view.schema_source, view.registry_config)
        return Projection(source.select("partition", "offset", timestamp_ms, "key", "value"), False)
    decoded = decode_records(session, source, view)
    select = _select(session, decoded, view.sql)
    columns = (
        "partition",
        "offset",
        timestamp_ms,
        f.col("_key").alias("key"),
        f.when(f.col("_problem").isNull(), f.col("_stored")).otherwise(f.col("_value")).alias("value"),
        (f.col("_live") & f.col("_problem").isNull() & ~f.col("_kept")).alias("dropped"),
        f.col("_problem").alias("problem"),
    )
    try:
        stored = tuple(
            (name, str(expression.dataType().simpleString())) for name, expression in select.values
        )
        frame = _with_stored(session, _with_kept(session, decoded, select), select, view).select(*columns)
        return Projection(frame, select.reads_headers, columns=stored)
    except AnalysisException as error:
        raise SqlError(f"spec.transform.sql: {message(error)}") from error


def _with_stored(session: SparkSession, kept: DataFrame, select: _Select, view: View) -> DataFrame:
    """Add `_stored`, the JSON of a record that is kept. In a view of entries, one without a time has a problem instead."""
    json = _json(session, select, view).cast(BinaryType())
    stored = kept.withColumn("_stored", f.when(f.col("_kept"), json))
    if view.time_field is None:
        return stored
    names = [name for name, _ in select.values]
    if names != ["value"] and view.time_field.split(".")[0] not in names:
        raise SqlError(
            f"spec.view.entries.timeField: {view.time_field} is no column of transform.sql; there are {', '.join(names)}"
        )
    timeless = java_function(session, "TimeProblem", (view.time_field,), StringType())
    return stored.withColumn("_problem", f.coalesce("_problem", timeless(f.col("_stored"))))


def _aggregate_rows(
    session: SparkSession, source: DataFrame, view: View, aggregate: AggregateSpec
) -> Projection:
    """Return the columns of an aggregate view. Tombstones and records that the filter drops add nothing."""
    decoded = decode_records(session, source, view)
    select = None if view.sql is None else _select(session, decoded, view.sql, bool(aggregate.group_by))
    own = ("partition", "offset", "timestamp", "_key", "_value", "_problem", "_kept", "_row", "_rows")
    outputs = _outputs(session, select)
    frame = _with_rows(session, _with_kept(session, decoded, select), select).select(*own, *outputs)
    attributes = output(frame)  # names that the user chose may equal names of our own
    columns = [column(session, attribute) for attribute in attributes]
    partition, offset, timestamp, key, value, undecodable, kept, row, rows_of_record = columns[: len(own)]
    visible = frame.select(*columns[len(own) :])
    key_format, makes_rows = "", select is not None and select.explode is not None
    if aggregate.group_by:
        key, key_format = group_key(session, visible, aggregate.group_by, "spec.view.aggregate.groupBy")
    timestamp_ms = f.unix_millis(timestamp)
    compiled = compile_inputs(session, visible, aggregate, kept, timestamp_ms)
    timeless = f.when(kept & compiled.event_ms.isNull(), "event time is null")
    problem = f.coalesce(undecodable, timeless)
    reads_headers = (
        select.reads_headers if select else attributes[len(own) + 2].exprId().id() in compiled.reads
    )
    rows = frame.select(
        partition,
        offset,
        timestamp_ms.alias("timestamp_ms"),
        key.alias("key"),
        f.when(problem.isNotNull(), value).alias("value"),
        (problem.isNull() & ~kept).alias("dropped"),
        problem.alias("problem"),
        f.coalesce(compiled.event_ms, f.lit(0)).alias("event_ms"),
        *compiled.columns,
        *((row.alias("row"), rows_of_record.alias("rows")) if makes_rows else ()),
    )
    readable = tuple((field.name, field.dataType.simpleString()) for field in visible.schema.fields)
    return Projection(rows, reads_headers, compiled.inputs, key_format, makes_rows, readable)


def _keyed_rows(session: SparkSession, source: DataFrame, view: View) -> Projection:
    """Return the columns of a latest-value view under another key: those of a transform, and then the record's key."""
    decoded = decode_records(session, source, view)
    select = None
    if view.sql is not None:  # the record key is a column like any other here
        select = replace(_select(session, decoded, view.sql), keys=frozenset())
    stored = f.col("_json") if select is None else _json(session, select, view).cast(BinaryType())
    own = ("partition", "offset", "timestamp", "_key", "_problem", "_live", "_kept")
    frame = _with_kept(session, decoded, select).select(
        *own, f.when(f.col("_kept"), stored).alias("_stored"), *_outputs(session, select)
    )
    columns = [column(session, attribute) for attribute in output(frame)]
    partition, offset, timestamp, record_key, problem, live, kept, stored = columns[: len(own) + 1]
    visible = frame.select(*columns[len(own) + 1 :])
    key, key_format = group_key(session, visible, view.key_by, "spec.view.keyBy")
    rows = frame.select(
        partition,
        offset,
        f.unix_millis(timestamp).alias("timestamp_ms"),
        f.when(kept, key).alias("key"),
        stored.alias("value"),
        (live & ~kept).alias("dropped"),
        problem.alias("problem"),
        record_key.alias("record_key"),
    )
    readable = tuple((field.name, field.dataType.simpleString()) for field in visible.schema.fields)
    reads_headers = select is not None and select.reads_headers
    return Projection(rows, reads_headers, group_key_format=key_format, columns=readable)


def _outputs(session: SparkSession, select: _Select | None) -> list[Column]:
    """Return the columns that the user's expressions read, for the records that count."""
    if select is None:
        return [f.col(name) for name in COLUMNS]
    return [
        f.when(f.col("_kept"), column(session, expression)).alias(name) for name, expression in select.outputs
    ]


def _with_kept(session: SparkSession, decoded: DataFrame, select: _Select | None) -> DataFrame:
    """Add the column `_kept`: the record has a value that can be decoded, and passes the filter."""
    if select is None or select.condition is None:
        return decoded.withColumn("_kept", f.col("_live"))
    passes = f.coalesce(column(session, select.condition), f.lit(False))
    return decoded.withColumn("_kept", f.when(f.col("_live"), passes).otherwise(False))


def _with_rows(session: SparkSession, kept: DataFrame, select: _Select | None) -> DataFrame:
    """Add `_row`, the index of the row in its record, and `_rows`. A record without a row still gives one, which is not kept, so
    that positions advance."""
    if select is None or select.explode is None:
        return kept.select("*", f.lit(0).alias("_row"), f.lit(1).alias("_rows"))
    node = select.explode
    elements = f.when(f.col("_kept"), column(session, node.generator().child()))
    arrays = kept.select("*", elements.alias("_array"))
    too_many = f.size("_array") > _ROWS_MAX
    named = arrays.withColumn(
        "_problem", f.coalesce("_problem", f.when(too_many, f"the record gives more than {_ROWS_MAX} rows"))
    )
    exploded = named.select(
        "*", f.posexplode_outer(f.when(~too_many, f.col("_array"))).alias("_place", "_element")
    )
    # The user's expressions refer to the element by the id that Spark gave it.
    jvm: Any = session._jvm
    none = java_class(jvm, "scala.None$").__getattr__("MODULE$")
    nothing = java_class(jvm, "scala.collection.immutable.Nil$").__getattr__("MODULE$")
    element = java_class(jvm, "org.apache.spark.sql.catalyst.expressions.Alias")(
        output(exploded)[-1], "_named", node.generatorOutput().apply(0).exprId(), nothing, none, nothing
    )
    exists = f.col("_place").isNotNull() | f.lit(bool(node.outer()))
    return (
        exploded.select("*", column(session, element))
        .withColumn("_kept", f.col("_kept") & exists & f.col("_problem").isNull())
        .withColumn("_row", f.coalesce("_place", f.lit(0)))
        .withColumn(
            "_rows", f.greatest(f.coalesce(f.size(f.when(~too_many, f.col("_array"))), f.lit(1)), f.lit(1))
        )
    )


def _select(session: SparkSession, decoded: DataFrame, sql: str, explodes: bool = False) -> _Select:
    """Analyse the user's SELECT. With `explodes` one of its columns may be explode(array)."""
    jvm: Any = session._jvm
    records = decoded.select(*COLUMNS)
    try:
        _check_parsed(session._jsparkSession.sessionState().sqlParser().parsePlan(sql))
        with _relation_lock:
            records.createOrReplaceTempView(RELATION)
            try:
                plan = analysed(session.sql(sql))
            finally:
                session.catalog.dropTempView(RELATION)
    except (ParseException, AnalysisException) as error:
        raise SqlError(f"spec.transform.sql: {message(error)}") from error
    # An alias that a later column uses makes a second projection; merge the two.
    collapse = java_class(jvm, "org.apache.spark.sql.catalyst.optimizer.CollapseProject$")
    plan = collapse.__getattr__("MODULE$").apply(plan, True)
    below = plan.child() if name_of(plan) == "Project" else None
    explode = below if explodes and below is not None and _is_explode(below) else None
    _check_analysed(plan, explode)
    below = plan.child() if explode is None else explode.child()
    condition = below.condition() if name_of(below) == "Filter" else None
    outputs = [(expression.name(), expression) for expression in each(plan.projectList())]
    used = [] if condition is None else [condition]
    used += [] if explode is None else [explode.generator().child()]
    for expression in [e for _, e in outputs] + used:
        check_expression(session, expression, "spec.transform.sql", _ONE_SELECT)
    ids = {a.name(): a.exprId().id() for a in output(records)}
    keys = frozenset(place for place, (name, e) in enumerate(outputs) if _is_key(name, e, ids["key"]))
    _check_names([name for place, (name, _) in enumerate(outputs) if place not in keys])
    reads = [reference for e in [*(e for _, e in outputs), *used] for reference in references(e)]
    return _Select(tuple(outputs), keys, condition, ids["headers"] in reads, explode)


def _is_explode(node: Any) -> bool:
    """Tell whether a node makes a row of each element of an array."""
    if name_of(node) != "Generate" or name_of(node.generator()) != "Explode":
        return False
    return name_of(node.generator().child().dataType()) == "ArrayType"


def _json(session: SparkSession, select: _Select, view: View) -> Column:
    """Return one JSON object of all columns, or the value itself if `value` is the only column."""
    if not select.values:
        return f.lit("{}")
    columns = [column(session, expression) for _, expression in select.values]
    options = {"ignoreNullFields": "false"}
    if [name for name, _ in select.values] != ["value"]:
        return f.to_json(f.struct(*columns), options)
    untouched = name_of(select.values[0][1]) == "AttributeReference"
    if untouched and view.schema_source is not None:
        return f.col("_json")
    if untouched and view.value_format == "json" and view.value_schema is None:
        return columns[0]  # it is JSON already
    # to_json takes no bare numbers and texts, so encode an array of one element and cut off the brackets.
    in_array = f.to_json(f.array(columns[0]), options)
    return f.substring(in_array, f.lit(2), f.length(in_array) - 2)


def _check_parsed(plan: Any) -> None:
    """Check the parsed plan before Spark analyses it, because Spark runs a command during the analysis."""
    node, allowed = plan, ["Project", "Filter", "SubqueryAlias", "UnresolvedRelation"]
    while True:
        name = name_of(node)
        if name not in allowed:
            what, advice = _REFUSED.get(name, ("anything but a SELECT", _ONE_SELECT))
            if name == "Project":
                what = "a SELECT within a SELECT"
            raise SqlError(f"spec.transform.sql: {what} cannot be used here; {advice}")
        if name == "UnresolvedRelation":
            return
        allowed = allowed[allowed.index(name) + 1 :]
        node = node.child()


def _check_analysed(plan: Any, explode: Any | None) -> None:
    for node in nodes(plan):
        if explode is not None and name_of(node) == "Generate":  # a plan has one
            continue
        if (refused := _REFUSED.get(name_of(node))) is not None:
            raise SqlError(f"spec.transform.sql: {refused[0]} cannot be used here; {refused[1]}")
    below = plan.child() if name_of(plan) == "Project" else None
    below = below if explode is None else explode.child()
    if below is not None and name_of(below) == "Filter":
        below = below.child()
    if below is None or name_of(below) != "SubqueryAlias":
        raise SqlError(f"spec.transform.sql: this is more than a projection; {_ONE_SELECT}")


def _check_names(names: Sequence[str]) -> None:
    for name in names:
        if name.lower() == "key":
            raise SqlError(
                "spec.transform.sql: the column key is not the record's key; give it another name, and for a view "
                "under another key list that name in view.keyBy"
            )
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise SqlError(f"spec.transform.sql: two columns are called {name}; rename one with AS")
        seen.add(name)


def _is_key(name: str, expression: Any, key_id: int) -> bool:
    """Tell whether a column is the record's key under its own name, which the row has anyway."""
    inner = expression.child() if name_of(expression) == "Alias" else expression
    return name.lower() == "key" and name_of(inner) == "AttributeReference" and inner.exprId().id() == key_id
