"""Test that the row writer and wire/contributions.py encode contributions alike, with the real class in Spark's JVM."""

from __future__ import annotations

import decimal
import math
from typing import Any

import pytest
from pyspark.sql import SparkSession

from queryable_app.wire import contributions
from queryable_app.wire.disk_format import ROW_HEADER, ROW_HEADER_SIZE
from tests.support.golden import GoldenContribution, contribution_inputs
from tests.support.golden import contributions as golden_contributions
from tests.support.spark_rows import spark_rows

CASES = golden_contributions()
ABSENT = {"absent": True}


def name(case: GoldenContribution) -> str:
    return f"{case.types[:6]}-{case.encoded.hex()[-12:]}"


def columns(case: GoldenContribution) -> tuple[str, list[Any]]:
    """Return the schema and the values of a row for the writer, from the event time on."""
    schema, values = ["event_ms bigint"], [case.event_ms]
    for i, (type_, filtered, given) in enumerate(zip(case.types, case.filtered, case.inputs, strict=True)):
        if filtered == "1":
            schema.append(f"f{i} boolean")
            values.append(given != ABSENT)
        sql, value = _column(type_, None if given == ABSENT else given)
        schema.append(f"v{i} {sql}")
        values.append(value)
    return ", ".join(schema), values


def _column(type_: str, given: Any) -> tuple[str, Any]:
    match type_:
        case "b" | "-":
            return "boolean", given
        case "d" | "f":
            return "double", None if given is None else float(given)
        case "s":
            return "binary", None if given is None else given.encode()
        case "x":
            return "binary", None if given is None else bytes.fromhex(given["hex"])
        case "n":
            scale = len(given.partition(".")[2]) if given else 0
            return f"decimal(38,{scale})", None if given is None else decimal.Decimal(given)
    return "bigint", given


@pytest.mark.parametrize("case", CASES, ids=name)
def test_writer_encodes_the_golden_contribution(spark: SparkSession, case: GoldenContribution) -> None:
    """The row writer makes exactly the bytes of the file, for every type, presence and extreme."""
    schema, values = columns(case)
    frame = spark.createDataFrame([tuple(values)], schema)
    (row,) = spark_rows(frame)
    jvm: Any = spark._jvm
    java: Any = frame._jdf
    writer = jvm.io.queryabletopics.Contribution(case.types, case.filtered, java.schema(), 0)

    assert bytes(writer.encoded(row)).hex() == case.encoded.hex()


@pytest.mark.parametrize("case", CASES, ids=name)
def test_python_encodes_and_decodes_the_golden_contribution(case: GoldenContribution) -> None:
    """Python makes the same bytes, and reads the same inputs out of them."""
    inputs = contribution_inputs(case.types, case.inputs)
    header = ROW_HEADER.pack(0, 4, 5, 0)

    encoded = contributions.encode(case.types, 4, 5, case.event_ms, inputs)
    offset, timestamp_ms, event_ms, decoded = contributions.decode(header + case.encoded)

    assert (encoded[:ROW_HEADER_SIZE], encoded[ROW_HEADER_SIZE:].hex()) == (header, case.encoded.hex())
    assert (offset, timestamp_ms, event_ms) == (4, 5, case.event_ms)
    for one, other in zip(decoded, inputs, strict=True):
        assert one == other or (math.isnan(one) and math.isnan(other))
