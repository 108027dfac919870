"""Compile the inputs of an aggregate view: what each record adds, computed by Spark over the transform's columns.

Strategy: Spark analyses each expression over an empty relation with the columns that the user sees, so that names, types and
positions in messages are Spark's. The checked expressions then become columns of the projection that feeds the row writer:
for each input a value, and before it, if it has a filter, whether the filter is true. `Contribution.java` encodes them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from queryable_app.aggregates.catalog import takes
from queryable_app.config.aggregate_spec import AggregateColumn, AggregateInput, AggregateSpec
from queryable_app.ingest.catalyst import (
    SqlError,
    analysed,
    check_expression,
    column,
    each,
    is_subquery,
    message,
    name_of,
    nodes,
    references,
)

_PATH: Final = "spec.view.aggregate"
_RECORDS: Final = "-"  # the type of an input without a value: only whether it is null counts

# The one-character types of wire/contributions.py.
_TYPES: Final[dict[type[DataType], str]] = {
    ByteType: "l",
    ShortType: "l",
    IntegerType: "l",
    LongType: "l",
    DoubleType: "d",
    FloatType: "f",
    BooleanType: "b",
    TimestampType: "t",
    TimestampNTZType: "t",
    DateType: "D",
    StringType: "s",
    BinaryType: "x",
    DecimalType: "n",
}
_NUMERIC_OPS: Final = ("sum", "avg", "approx_quantiles")
_ONE_VALUE: Final = "write one expression over the columns {columns}"
_REFUSED: Final = {
    "Aggregate": "{op} is the aggregate, and {path} is what it is of",
    "Window": "window functions need more than one record",
    "Generate": "functions that make several rows, such as explode, cannot be used here",
}


@dataclass(frozen=True, slots=True)
class ResolvedInput:
    """Describe an input as Spark has analysed it."""

    input: AggregateInput
    type: str
    """One of the types of wire/contributions.py."""

    sql_type: str
    """Spark's name of the type, such as `decimal(10,2)`; empty for a count of records."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """Hold the columns that the writer needs, and what they are."""

    inputs: tuple[ResolvedInput, ...]
    columns: tuple[Column, ...]
    event_ms: Column
    """The event time. Null: the record has none."""

    reads: frozenset[int]
    """The ids of the attributes that the expressions read."""


@dataclass(frozen=True, slots=True)
class _Expression:
    path: str
    expression: Any  # Catalyst's
    type: DataType


def compile_inputs(
    session: SparkSession, relation: DataFrame, spec: AggregateSpec, kept: Column, timestamp_ms: Column
) -> Compiled:
    """Compile the inputs over the columns of `relation`. `kept` tells which records count; no other reaches an expression."""
    compiler = _Compiler(session, relation)
    columns: list[Column] = []
    inputs: list[ResolvedInput] = []
    for wanted in spec.inputs:
        users = [user for user in spec.columns if user.input == wanted]
        passes = kept
        if wanted.filter is not None:
            condition = compiler.condition(wanted.filter, users[0])
            passes = f.coalesce(kept & condition, f.lit(False))
            columns.append(passes)
        resolved, value = compiler.value(wanted, users)
        inputs.append(resolved)
        columns.append(f.when(passes, value))
    event_ms = timestamp_ms
    if spec.window is not None and spec.window.time_column is not None:
        event_ms = f.when(kept, compiler.event_ms(spec.window.time_column))
    return Compiled(tuple(inputs), tuple(columns), event_ms, frozenset(compiler.reads))


class _Compiler:
    """Analyse expressions over one relation, and remember which columns they read."""

    def __init__(self, session: SparkSession, relation: DataFrame) -> None:
        self._session = session
        self._relation = relation
        self._one_value = _ONE_VALUE.format(columns=", ".join(relation.columns))
        self._of_relation = _nodes_by_name(analysed(relation))  # of which one explodes, where the SQL does
        self.reads: set[int] = set()

    def condition(self, text: str, user: AggregateColumn) -> Column:
        condition = self._analyse(text, f"{_column_path(user)}.filter", user.op)
        if not isinstance(condition.type, BooleanType):
            raise SqlError(
                f"{condition.path}: a {condition.type.simpleString()} is no condition; "
                "write one that is true or false, such as amount > 0"
            )
        return self._column(condition)

    def value(self, wanted: AggregateInput, users: Sequence[AggregateColumn]) -> tuple[ResolvedInput, Column]:
        if wanted.of is None:
            return ResolvedInput(wanted, _RECORDS, ""), f.lit(True)
        value = self._analyse(wanted.of, f"{_column_path(users[0])}.of", users[0].op)
        sql_type = value.type.simpleString()
        if all(user.op == "count" for user in users):  # whatever the type: only whether it is null counts
            present = f.when(self._column(value).isNotNull(), f.lit(True))
            return ResolvedInput(wanted, _RECORDS, sql_type), present
        for user in users:
            _check_type(value.type, user)
        type_ = _TYPES[type(value.type)]
        return ResolvedInput(wanted, type_, sql_type), _carried(self._column(value), type_)

    def event_ms(self, text: str) -> Column:
        path = f"{_PATH}.window.timeColumn"
        time = self._analyse(text, path, "the window")
        match time.type:
            case TimestampType() | TimestampNTZType():
                return f.unix_millis(self._column(time).cast(TimestampType()))
            case LongType():
                return self._column(time)
        advice = "give a timestamp, or a BIGINT of milliseconds since 1970"
        if isinstance(time.type, IntegerType):
            advice += "; an INT of seconds becomes a timestamp with timestamp_seconds"
        raise SqlError(f"{path}: {text} has the type {time.type.simpleString()}; {advice}")

    def _analyse(self, text: str, path: str, op: str) -> _Expression:
        """Return one analysed expression, or raise Spark's message or advice."""
        try:
            # Before the analysis, which would look for a subquery's tables.
            parsed = self._session._jsparkSession.sessionState().sqlParser().parseExpression(text)
            if any(is_subquery(self._session, node) for node in nodes(parsed)):
                raise SqlError(
                    f"{path}: a SELECT within an expression cannot be used here; {self._one_value}"
                )
            selected = self._relation.selectExpr(text)
        except (ParseException, AnalysisException) as error:
            raise SqlError(f"{path}: {message(error)}") from error
        plan = analysed(selected)
        for name in _nodes_by_name(plan) - self._of_relation:
            if (reason := _REFUSED.get(name)) is not None:
                raise SqlError(f"{path}: {reason.format(op=op, path=path)}; {self._one_value}")
        if name_of(plan) != "Project" or len(selected.schema.fields) != 1 or name_of(parsed).endswith("Star"):
            hint = ", or leave the field out to count records" if op == "count" else ""
            raise SqlError(f"{path}: {text} is not one value; {self._one_value}{hint}")
        (expression,) = each(plan.projectList())
        check_expression(self._session, expression, path, self._one_value)
        return _Expression(path, expression, selected.schema.fields[0].dataType)

    def _column(self, analysed_one: _Expression) -> Column:
        self.reads.update(references(analysed_one.expression))
        return column(self._session, analysed_one.expression)


def _nodes_by_name(plan: Any) -> Counter[str]:
    return Counter(map(name_of, nodes(plan)))


def _column_path(of: AggregateColumn) -> str:
    return f"{_PATH}.columns[{of.name}]"


def _check_type(of: DataType, user: AggregateColumn) -> None:
    path, name = f"{_column_path(user)}.of", of.simpleString()
    type_ = _TYPES.get(type(of))
    if type_ is None or name.startswith("string collate"):
        raise SqlError(
            f"{path}: {user.of} has the type {name}, which {user.op} does not take; "
            "give a number, a text, a boolean, a date, a timestamp or bytes, for example one of its fields or a CAST"
        )
    if takes(user.op, type_):
        return
    if user.op not in _NUMERIC_OPS:
        raise SqlError(f"{path}: {user.of} has the type {name}, which {user.op} does not take")
    raise SqlError(
        f"{path}: {user.op} of {user.of}, which has the type {name}; "
        f"{user.op} needs a number, so CAST it to one: text that is none becomes NULL"
    )


def _carried(value: Column, type_: str) -> Column:
    """Return the value as one of the few types that the writer encodes."""
    match type_:
        case "l":
            return value.cast(LongType())
        case "d" | "f":
            return value.cast(DoubleType())
        case "t":
            return f.unix_micros(value.cast(TimestampType()))
        case "D":
            return f.unix_date(value).cast(LongType())
        case "s":
            return f.call_function("make_valid_utf8", value).cast(BinaryType())
        case _:
            return value
