"""Read Spark's plans and expressions through Py4J, and check expressions that a user wrote."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from py4j.java_gateway import is_instance_of
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.classic.column import Column as ClassicColumn
from pyspark.sql.types import BinaryType, DataType, StringType, StructField, StructType

from queryable_app.ingest.java_classes import java_class, java_list, own_class

_MADE: Final = StructType([StructField("json", BinaryType()), StructField("problem", StringType())])
_SUBQUERY: Final = "org.apache.spark.sql.catalyst.expressions.SubqueryExpression"
# Every replica of a partition must compute the same rows, whenever it reads the records.
_CLOCKS: Final = {"CurrentTimestamp", "CurrentDate", "CurrentTime", "Now", "LocalTimestamp"}


class SqlError(Exception):
    """The view's SQL is refused; the message names the field and says what is allowed."""

    reason = "TransformRefused"


def column(session: SparkSession, expression: Any) -> Column:
    jvm: Any = session._jvm
    return ClassicColumn(java_class(jvm, "org.apache.spark.sql.classic.ExpressionUtils").column(expression))


def no_rows(session: SparkSession, schema: StructType) -> DataFrame:
    """Return a frame of these columns without rows. PySpark's own way makes an RDD of Python objects."""
    jvm: Any = session._jvm
    frame = session._jsparkSession.createDataFrame(java_list(jvm), _java_type(session, schema))
    return DataFrame(frame, session)


def _java_type(session: SparkSession, of: DataType) -> Any:
    """Return the JVM's type. It goes over as JSON: the JVM's first look at a type in SQL takes half a second of CPU."""
    jvm: Any = session._jvm
    return java_class(jvm, "org.apache.spark.sql.types.DataType").fromJson(of.json())


def output(frame: DataFrame) -> list[Any]:
    """Return the attributes of a frame, by which its columns are found whatever they are called."""
    return each(analysed(frame).output())


def analysed(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().analyzed()


def nodes(tree: Any) -> Iterator[Any]:
    """Yield a plan or an expression, and everything below it."""
    yield tree
    for child in each(tree.children()):
        yield from nodes(child)


def references(expression: Any) -> list[int]:
    """Return the ids of the attributes that an expression reads."""
    return [node.exprId().id() for node in nodes(expression) if name_of(node) == "AttributeReference"]


def each(sequence: Any) -> list[Any]:
    return [sequence.apply(i) for i in range(sequence.size())]


def name_of(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def message(error: PySparkException) -> str:
    """Return Spark's message with its position, without the plan and the Java stack trace."""
    return re.split(r";\n\s*'?\w|JVM stacktrace:", str(error), maxsplit=1)[0].strip()


def is_subquery(session: SparkSession, node: Any) -> bool:
    gateway: Any = session.sparkContext._gateway
    return bool(is_instance_of(gateway, node, _SUBQUERY))


def check_expression(session: SparkSession, expression: Any, path: str, one_row: str) -> None:
    """Refuse an analysed expression that another replica would compute differently. `one_row` says what is allowed."""
    for node in nodes(expression):
        if is_subquery(session, node):
            raise SqlError(f"{path}: a SELECT within a SELECT cannot be used here; {one_row}")
        random = not node.deterministic() and all(child.deterministic() for child in each(node.children()))
        if random or name_of(node) in _CLOCKS:
            raise SqlError(
                f"{path}: {node.prettyName()} gives another value each time, and every replica of a "
                "partition must compute the same rows; use the column timestamp"
            )


def java_function(
    session: SparkSession, name: str, arguments: tuple[str, ...], returns: DataType
) -> Callable[..., Column]:
    """Return one of the writer's functions for use in a projection."""
    jvm: Any = session._jvm
    function = own_class(jvm, f"Decoding${name}")(*arguments)
    registered = "_".join(("qt", name, *arguments))
    session._jsparkSession.udf().register(registered, function, _java_type(session, returns))
    return lambda *columns: f.call_function(registered, *columns)


def json_function(session: SparkSession, decoder: Any, name: str) -> Callable[..., Column]:
    """Return the function from a value that has a schema to `json` and `problem`, one of which is null.

    `name` distinguishes the decoder from others of the session.
    """
    jvm: Any = session._jvm
    function = own_class(jvm, "Decoding$Json")(decoder)
    registered = f"qt_Json_{name}"
    session._jsparkSession.udf().register(registered, function, _java_type(session, _MADE))
    return lambda *columns: f.call_function(registered, *columns)
