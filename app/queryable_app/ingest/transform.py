"""Turn Kafka's records into the writer's rows: unchanged, or through the user's SQL.

Strategy: Spark analyses the SQL over an empty relation `records`, so that names, types and positions in messages are Spark's.
The checks work on the plan: one SELECT over `records` with an optional WHERE is allowed. Its expressions are then taken
out of the analysed plan and put into projections of our own, so that

* every record leaves a row: one that the filter drops becomes a delete, and positions always advance;
* a tombstone or a record that cannot be decoded never reaches the user's expressions;
* the query runs in Real-Time Mode, which supports projections and little else.

Each projection reads what the one below it computed, which also keeps Spark from parsing a record's JSON twice.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from py4j.java_gateway import is_instance_of
from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.classic.column import Column as ClassicColumn
from pyspark.sql.types import DataType, StructField, StructType

RELATION: Final = "records"
_relation_lock: Final = threading.Lock()  # the queries of a pod's workers share the session, and so this name
COLUMNS: Final = ("key", "value", "headers", "timestamp", "partition", "offset")
_HEADERS_TYPE: Final = "array<struct<key:string,value:binary>>"
_SOURCE_SCHEMA: Final = (
    f"key binary, value binary, headers {_HEADERS_TYPE}, timestamp timestamp, partition int, offset bigint"
)
_NUMBERS: Final = {"int": "int", "long": "bigint", "double": "double"}

_ONE_SELECT: Final = (
    "write one SELECT … FROM records with an optional WHERE: it gives one row for each record"
)
_AGGREGATES: Final = (
    "counts, sums and the like will be a feature of their own, view.aggregate; " + _ONE_SELECT
)
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
_SUBQUERY: Final = "org.apache.spark.sql.catalyst.expressions.SubqueryExpression"
# Every replica of a partition must compute the same rows, whenever it reads the records.
_CLOCKS: Final = {"CurrentTimestamp", "CurrentDate", "CurrentTime", "Now", "LocalTimestamp"}


class SqlError(Exception):
    """The view's SQL is refused; the message names the field and says what is allowed."""

    reason = "TransformRefused"


class SchemaError(SqlError):
    """The schema of the view's values is refused."""

    reason = "SchemaRefused"


@dataclass(frozen=True, slots=True)
class View:
    """Hold the settings that decide how records become rows."""

    key_format: str
    value_format: str
    value_schema: str | None = None
    sql: str | None = None


@dataclass(frozen=True, slots=True)
class _Select:
    """Hold the user's SELECT as expressions over the columns of a decoded source."""

    outputs: tuple[tuple[str, Any], ...]  # name and Catalyst expression, without the key
    condition: Any | None
    reads_headers: bool


def check_sql(session: SparkSession, view: View) -> bool:
    """Refuse SQL that cannot be run, before a query starts. Return True if the view reads headers."""
    if view.sql is None:  # the schema can be parsed without a query
        _value_schema(view)
        return False
    return _rows(session, session.createDataFrame([], _SOURCE_SCHEMA), view)[1]


def rows(session: SparkSession, source: DataFrame, view: View) -> DataFrame:
    """Return the columns that RowWriter expects, computed from those of the Kafka source."""
    return _rows(session, source, view)[0]


def _rows(session: SparkSession, source: DataFrame, view: View) -> tuple[DataFrame, bool]:
    timestamp_ms = f.unix_millis("timestamp").alias("timestamp_ms")
    if view.sql is None:
        _value_schema(view)
        return source.select("partition", "offset", timestamp_ms, "key", "value"), False
    decoded = _decoded(session, source, view)
    select = _select(session, decoded, view.sql)
    condition = f.lit(True) if select.condition is None else _column(session, select.condition)
    passes = f.when(f.col("_live"), f.coalesce(condition, f.lit(False))).otherwise(False)
    value = f.when(f.col("_kept"), _json(session, select, view).cast("binary"))
    columns = (
        "partition",
        "offset",
        timestamp_ms,
        f.col("_key").alias("key"),
        value.when(f.col("_problem").isNotNull(), f.col("_value")).alias("value"),
        (f.col("_live") & ~f.col("_kept")).alias("dropped"),
        f.col("_problem").alias("problem"),
    )
    try:
        return decoded.withColumn("_kept", passes).select(*columns), select.reads_headers
    except AnalysisException as error:
        raise SqlError(f"spec.transform.sql: {_message(error)}") from error


def _decoded(session: SparkSession, source: DataFrame, view: View) -> DataFrame:
    """Return the six columns that the user sees, and columns of our own, whose names begin with _."""
    schema = _value_schema(view)
    problem = _java(session, "Problem", (view.key_format, view.value_format), "string")
    headers = f.col("headers") if "headers" in source.columns else f.lit(None).cast(_HEADERS_TYPE)
    raw = source.select(
        "partition",
        "offset",
        "timestamp",
        headers.alias("headers"),
        f.col("key").alias("_key"),
        f.col("value").alias("_value"),
        problem(f.col("key"), f.col("value")).alias("_undecodable"),
        _parsed(schema).alias("_parsed"),
    )
    mismatch = f.when(f.col("_parsed._corrupt").isNotNull(), "value: not as spec.value.schema has it")
    checked = raw.withColumn(
        "_problem", f.coalesce("_undecodable", mismatch) if schema else f.col("_undecodable")
    )
    if schema:
        fields = [f.col("_parsed").getField(name).alias(name) for name in schema.fieldNames()]
        value = f.when(f.col("_parsed").isNotNull(), f.struct(*fields))
    else:
        value = _typed(session, "_value", view.value_format)
    return checked.select(
        _typed(session, "_key", view.key_format).alias("key"),
        value.alias("value"),
        "headers",
        "timestamp",
        "partition",
        "offset",
        "_key",
        "_value",
        "_problem",
        (f.col("_value").isNotNull() & f.col("_problem").isNull()).alias("_live"),
    )


def _parsed(schema: StructType | None) -> Column:
    if schema is None:
        return f.lit(None).cast("struct<_corrupt:string>")
    whole = StructType([*schema.fields, StructField("_corrupt", DataType.fromDDL("string"))])
    return f.from_json(f.col("value").cast("string"), whole, {"columnNameOfCorruptRecord": "_corrupt"})


def _typed(session: SparkSession, column: str, format: str) -> Column:
    if format in _NUMBERS:
        return _java(session, "Number", (format,), _NUMBERS[format])(f.col(column))
    return f.col(column) if format == "bytes" else f.col(column).cast("string")


def _value_schema(view: View) -> StructType | None:
    if view.value_schema is None:
        return None
    try:
        schema = DataType.fromDDL(view.value_schema)
    except PySparkException as error:
        raise SchemaError(f"spec.value.schema: {_message(error)}") from error
    if not isinstance(schema, StructType) or not schema.fields:
        raise SchemaError(
            "spec.value.schema: name columns and their types, like `user STRING, amount DOUBLE`"
        )
    return schema


def _select(session: SparkSession, decoded: DataFrame, sql: str) -> _Select:
    jvm: Any = session._jvm
    records = decoded.select(*COLUMNS)
    try:
        _check_parsed(session._jsparkSession.sessionState().sqlParser().parsePlan(sql))
        with _relation_lock:
            records.createOrReplaceTempView(RELATION)
            try:
                plan = session.sql(sql)._jdf.queryExecution().analyzed()
            finally:
                session.catalog.dropTempView(RELATION)
    except (ParseException, AnalysisException) as error:
        raise SqlError(f"spec.transform.sql: {_message(error)}") from error
    # An alias that a later column uses makes a second projection; merge the two.
    collapse = getattr(jvm.org.apache.spark.sql.catalyst.optimizer, "CollapseProject$")
    plan = collapse.__getattr__("MODULE$").apply(plan, True)
    _check_analysed(plan)
    below = plan.child()
    condition = below.condition() if _name(below) == "Filter" else None
    outputs = [(expression.name(), expression) for expression in _each(plan.projectList())]
    for expression in [e for _, e in outputs] + ([] if condition is None else [condition]):
        _check_expression(session, expression)
    ids = {a.name(): a.exprId().id() for a in _each(records._jdf.queryExecution().analyzed().output())}
    values = [(name, e) for name, e in outputs if not _is_key(name, e, ids["key"])]
    _check_names([name for name, _ in values])
    used = [reference for _, e in values for reference in _references(e)]
    used += [] if condition is None else _references(condition)
    return _Select(tuple(values), condition, any(r.exprId().id() == ids["headers"] for r in used))


def _json(session: SparkSession, select: _Select, view: View) -> Column:
    """Return one JSON object of all columns, or the value itself if `value` is the only column."""
    if not select.outputs:
        return f.lit("{}")
    columns = [_column(session, expression) for _, expression in select.outputs]
    options = {"ignoreNullFields": "false"}
    if [name for name, _ in select.outputs] != ["value"]:
        return f.to_json(f.struct(*columns), options)
    untouched = _name(select.outputs[0][1]) == "AttributeReference"
    if untouched and view.value_format == "json" and view.value_schema is None:
        return columns[0]  # it is JSON already
    # to_json takes no bare numbers and texts, so encode an array of one element and cut off the brackets.
    in_array = f.to_json(f.array(columns[0]), options)
    return f.substring(in_array, f.lit(2), f.length(in_array) - 2)


def _check_parsed(plan: Any) -> None:
    """Check the parsed plan before Spark analyses it, because Spark runs a command during the analysis."""
    node, allowed = plan, ["Project", "Filter", "SubqueryAlias", "UnresolvedRelation"]
    while True:
        name = _name(node)
        if name not in allowed:
            what, advice = _REFUSED.get(name, ("anything but a SELECT", _ONE_SELECT))
            if name == "Project":
                what = "a SELECT within a SELECT"
            raise SqlError(f"spec.transform.sql: {what} cannot be used here; {advice}")
        if name == "UnresolvedRelation":
            return
        allowed = allowed[allowed.index(name) + 1 :]
        node = node.child()


def _check_analysed(plan: Any) -> None:
    for node in _nodes(plan):
        if (refused := _REFUSED.get(_name(node))) is not None:
            raise SqlError(f"spec.transform.sql: {refused[0]} cannot be used here; {refused[1]}")
    below = plan.child() if _name(plan) == "Project" else None
    if below is not None and _name(below) == "Filter":
        below = below.child()
    if below is None or _name(below) != "SubqueryAlias":
        raise SqlError(f"spec.transform.sql: this is more than a projection; {_ONE_SELECT}")


def _check_expression(session: SparkSession, expression: Any) -> None:
    gateway: Any = session.sparkContext._gateway
    for node in _nodes(expression):
        if is_instance_of(gateway, node, _SUBQUERY):
            raise SqlError(f"spec.transform.sql: a SELECT within a SELECT cannot be used here; {_ONE_SELECT}")
        random = not node.deterministic() and all(child.deterministic() for child in _each(node.children()))
        if random or _name(node) in _CLOCKS:
            raise SqlError(
                f"spec.transform.sql: {node.prettyName()} gives another value each time, and every replica of a "
                "partition must compute the same rows; use the column timestamp"
            )


def _check_names(names: Sequence[str]) -> None:
    for name in names:
        if name.lower() == "key":
            raise SqlError(
                "spec.transform.sql: the column key is not the record's key; a view with another key needs "
                "view.keyBy, which is not in this version yet: give the column another name"
            )
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise SqlError(f"spec.transform.sql: two columns are called {name}; rename one with AS")
        seen.add(name)


def _is_key(name: str, expression: Any, key_id: int) -> bool:
    """Tell whether a column is the record's key under its own name, which the row has anyway."""
    inner = expression.child() if _name(expression) == "Alias" else expression
    return name.lower() == "key" and _name(inner) == "AttributeReference" and inner.exprId().id() == key_id


def _java(
    session: SparkSession, name: str, arguments: tuple[str, ...], returns: str
) -> Callable[..., Column]:
    """Return one of the writer's functions for use in a projection."""
    jvm: Any = session._jvm
    function = getattr(jvm.io.queryabletopics, f"Decoding${name}")(*arguments)
    registered = "_".join(("qt", name, *arguments))
    type_ = jvm.org.apache.spark.sql.types.DataType.fromDDL(returns)
    session._jsparkSession.udf().register(registered, function, type_)
    return lambda *columns: f.call_function(registered, *columns)


def _column(session: SparkSession, expression: Any) -> Column:
    jvm: Any = session._jvm
    return ClassicColumn(jvm.org.apache.spark.sql.classic.ExpressionUtils.column(expression))


def _nodes(tree: Any) -> Iterator[Any]:
    """Yield a plan or an expression, and everything below it."""
    yield tree
    for child in _each(tree.children()):
        yield from _nodes(child)


def _references(expression: Any) -> list[Any]:
    return [node for node in _nodes(expression) if _name(node) == "AttributeReference"]


def _each(sequence: Any) -> list[Any]:
    return [sequence.apply(i) for i in range(sequence.size())]


def _name(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _message(error: PySparkException) -> str:
    """Return Spark's message with its position, without the plan and the Java stack trace."""
    return re.split(r";\n\s*'?\w|JVM stacktrace:", str(error), maxsplit=1)[0].strip()
