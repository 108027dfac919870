"""Decode Kafka's records into the columns that the view's SQL reads, and say why a record cannot be decoded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from queryable_app.config.aggregate_spec import AggregateSpec
from queryable_app.config.key_schema import KeySchema
from queryable_app.config.value_schema import SchemaSource
from queryable_app.ingest.catalyst import java_function, json_function, message
from queryable_app.ingest.value_decoders import SchemaError, columns_of, value_decoder

HEADERS_TYPE: Final = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
_CORRUPT: Final = StructField("_corrupt", StringType())
_NUMBERS: Final = {"int": IntegerType(), "long": LongType(), "double": DoubleType()}


@dataclass(frozen=True, slots=True)
class View:
    """Hold the settings that decide how records become rows."""

    key_format: str
    value_format: str
    value_schema: str | None = None
    sql: str | None = None
    aggregate: AggregateSpec | None = None
    key_by: tuple[str, ...] = ()
    schema_source: SchemaSource | None = None
    registry_config: Mapping[str, str] = field(default_factory=dict, repr=False)  # a password
    key_schema: KeySchema | None = None
    time_field: str | None = None
    """The path to the time of an entry, in a view of entries."""


def decode_records(session: SparkSession, source: DataFrame, view: View) -> DataFrame:
    """Return the six columns that the user sees, and columns of our own, whose names begin with _."""
    schema = value_schema(session, view)
    problem = java_function(
        session, "Problem", (decoded_key_format(view), checked_format(view)), StringType()
    )
    headers = f.col("headers") if "headers" in source.columns else f.lit(None).cast(HEADERS_TYPE)
    decoder = value_decoder(session, view.schema_source, view.registry_config)
    source, key, key_problem = _decoded_key(session, source, view)
    json, format = "value", view.value_format
    if decoder is not None:
        source = source.withColumn(
            "_made",
            json_function(session, decoder, f"{hash(view.schema_source) & 0xFFFFFFFFFFFF:x}")(f.col("value")),
        )
        json, format = "_made.json", "json"
    raw = source.select(
        "partition",
        "offset",
        "timestamp",
        headers.alias("headers"),
        f.col("key").alias("_key"),
        f.col(key).alias("_decoded_key"),
        f.col("value").alias("_value"),
        f.col(json).alias("_json"),
        f.coalesce(key_problem, _undecodable(problem(f.col(key), f.col("value")), decoder is not None)).alias(
            "_undecodable"
        ),
        _parsed(json, schema).alias("_parsed"),
    )
    said = "schemaFrom" if decoder is not None and view.value_schema is None else "schema"
    mismatch = f.when(f.col("_parsed._corrupt").isNotNull(), f"value: not as spec.value.{said} has it")
    checked = raw.withColumn(
        "_problem", f.coalesce("_undecodable", mismatch) if schema else f.col("_undecodable")
    )
    if schema:
        fields = [f.col("_parsed").getField(name).alias(name) for name in schema.fieldNames()]
        value = f.when(f.col("_parsed").isNotNull(), f.struct(*fields))
    else:
        value = _typed(session, "_json", format)
    return checked.select(
        _typed(session, "_decoded_key", decoded_key_format(view)).alias("key"),
        value.alias("value"),
        "headers",
        "timestamp",
        "partition",
        "offset",
        "_key",
        "_value",
        "_json",
        "_problem",
        (f.col("_value").isNotNull() & f.col("_problem").isNull()).alias("_live"),
    )


def _decoded_key(session: SparkSession, source: DataFrame, view: View) -> tuple[DataFrame, str, Column]:
    """Return the source, the name of its column with the key without its encoding, and the problem of the key."""
    if view.key_schema is None:
        return source, "key", f.lit(None).cast(StringType())
    encoding = (key_encoding(view.key_schema),)
    decoded = java_function(session, "KeyBytes", encoding, BinaryType())
    key_problem = java_function(session, "KeyProblem", encoding, StringType())
    return source.withColumn("_bare_key", decoded(f.col("key"))), "_bare_key", key_problem(f.col("key"))


def key_encoding(schema: KeySchema) -> str:
    """Return the argument of the JVM's KeyDecoders, which is also part of a function's name in SQL."""
    frame = "bare" if schema.schema_id is None else schema.schema_id
    if schema.field is None:
        return f"avro_{frame}_{schema.type}"
    written = "always" if schema.field.always_written else "implicitly"
    return f"protobuf_{frame}_{schema.field.type}_{schema.field.number}_{written}"


def decoded_key_format(view: View) -> str:
    """Return the format of keys without their encoding."""
    return view.key_format if view.key_schema is None else view.key_schema.type


def checked_format(view: View) -> str:
    """Return the format that the bytes of values are checked for. The decoder checks those that have a schema."""
    return view.value_format if view.schema_source is None else "bytes"


def _undecodable(problem: Column, decoded: bool) -> Column:
    return f.coalesce(problem, f.col("_made.problem")) if decoded else problem


def _parsed(json: str, schema: StructType | None) -> Column:
    if schema is None:
        return f.lit(None).cast(StructType([_CORRUPT]))
    whole = StructType([*schema.fields, _CORRUPT])
    return f.from_json(f.col(json).cast(StringType()), whole, {"columnNameOfCorruptRecord": "_corrupt"})


def _typed(session: SparkSession, name: str, format: str) -> Column:
    if format in _NUMBERS:
        return java_function(session, "Number", (format,), _NUMBERS[format])(f.col(name))
    return f.col(name) if format == "bytes" else f.col(name).cast(StringType())


def value_schema(session: SparkSession, view: View) -> StructType | None:
    """Return the columns of values, which the view's SQL reads as `value.name`."""
    if view.schema_source is not None and view.schema_source.format != "json":
        return columns_of(session, view.schema_source)
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
