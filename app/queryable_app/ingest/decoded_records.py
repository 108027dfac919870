"""Decode Kafka's records into the columns that the view's SQL reads, and say why a record cannot be decoded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import DataType, StructField, StructType

from queryable_app.config.aggregate_spec import AggregateSpec
from queryable_app.ingest.catalyst import SqlError, java_function, message

HEADERS_TYPE: Final = "array<struct<key:string,value:binary>>"
_NUMBERS: Final = {"int": "int", "long": "bigint", "double": "double"}


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
    aggregate: AggregateSpec | None = None
    key_by: tuple[str, ...] = ()


def decode_records(session: SparkSession, source: DataFrame, view: View) -> DataFrame:
    """Return the six columns that the user sees, and columns of our own, whose names begin with _."""
    schema = value_schema(view)
    problem = java_function(session, "Problem", (view.key_format, view.value_format), "string")
    headers = f.col("headers") if "headers" in source.columns else f.lit(None).cast(HEADERS_TYPE)
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


def _typed(session: SparkSession, name: str, format: str) -> Column:
    if format in _NUMBERS:
        return java_function(session, "Number", (format,), _NUMBERS[format])(f.col(name))
    return f.col(name) if format == "bytes" else f.col(name).cast("string")


def value_schema(view: View) -> StructType | None:
    if view.value_schema is None:
        return None
    try:
        schema = DataType.fromDDL(view.value_schema)
    except PySparkException as error:
        raise SchemaError(f"spec.value.schema: {message(error)}") from error
    if not isinstance(schema, StructType) or not schema.fields:
        raise SchemaError(
            "spec.value.schema: name columns and their types, like `user STRING, amount DOUBLE`"
        )
    return schema
