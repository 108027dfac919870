"""Decode values that have a schema: the JVM's decoder, and the columns that the view's SQL reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from queryable_app.config.avro_schema import AvroType, parse_avro_schema
from queryable_app.config.value_schema import SchemaSource, authorization
from queryable_app.ingest.catalyst import SqlError
from queryable_app.ingest.java_classes import own_class

_SCALARS: Final[dict[str, DataType]] = {
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "bytes": BinaryType(),
    "fixed": BinaryType(),
}
_LOGICAL: Final[dict[str, DataType]] = {
    "date": DateType(),
    "uuid": StringType(),
    "time-millis": StringType(),
    "time-micros": StringType(),
}
_NAMES: Final = {"avro": "Avro schema", "protobuf": "Protobuf schema", "json": "JSON Schema"}
_DECIMAL_DIGITS_MAX: Final = 38  # of Spark


class SchemaError(SqlError):
    """The schema of the view's values is refused."""

    reason = "SchemaRefused"


def value_decoder(session: SparkSession, source: SchemaSource | None, registry: Mapping[str, str]) -> Any:
    """Return the JVM's decoder of values; None if they have no schema. Raises SchemaError."""
    if source is None:
        return None
    jvm: Any = session._jvm
    registry_ = None
    if source.registry_url:
        registry_ = own_class(jvm, "SchemaRegistry")(source.registry_url, authorization(registry))
    if source.format == "protobuf":
        decoder = own_class(jvm, "ProtobufDecoder")(source.text or None, source.message, registry_)
    elif source.format == "json":
        decoder = own_class(jvm, "JsonSchemaDecoder")(source.text or None, registry_)
    else:
        decoder = own_class(jvm, "AvroDecoder")(source.text or None, registry_)
    try:
        decoder.check()
    except Py4JJavaError as error:
        cause: Any = error.java_exception
        reason = cause.getMessage() or cause.getClass().getSimpleName()
        raise SchemaError(f"spec.value.schemaFrom.inline: no {_NAMES[source.format]}: {reason}") from None
    return decoder


def columns_of(session: SparkSession, source: SchemaSource) -> StructType | None:
    """Return the columns of values; None if they are not known, or no record: then a value is the text of its JSON."""
    if not source.text:
        return None
    if source.format == "protobuf":
        ddl = value_decoder(session, source, {}).columns()
        columns = DataType.fromDDL(ddl) if ddl else None
        return columns if isinstance(columns, StructType) else None
    type_ = _spark_type(parse_avro_schema(source.text), frozenset())
    return type_ if isinstance(type_, StructType) and type_.fields else None


def _spark_type(avro: AvroType, within: frozenset[str]) -> DataType:
    """Return the type of a part of the JSON. What SQL has no type for is the text of its JSON: several types, or a record in
    itself."""
    if avro.kind == "union":
        branches = [branch for branch in avro.branches if branch.kind != "null"]
        return _spark_type(branches[0], within) if len(branches) == 1 else StringType()
    if avro.kind == "record":
        if avro.name in within or not avro.fields:
            return StringType()
        inside = within | {avro.name}
        return StructType([StructField(each.name, _spark_type(each.type, inside)) for each in avro.fields])
    if avro.kind in ("array", "map"):
        assert avro.items is not None
        items = _spark_type(avro.items, within)
        return ArrayType(items) if avro.kind == "array" else MapType(StringType(), items)
    if avro.logical == "decimal":
        fits = avro.precision <= _DECIMAL_DIGITS_MAX
        return DecimalType(avro.precision, avro.scale) if fits else StringType()
    if avro.logical.startswith("timestamp"):
        return TimestampType()
    if avro.logical.startswith("local-timestamp"):
        return TimestampNTZType()
    return _LOGICAL.get(avro.logical) or _SCALARS.get(avro.kind, StringType())
