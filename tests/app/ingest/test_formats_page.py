"""Run the examples of docs/formats.md: its resources, and the JSON of each Avro type. Other tests run its records end to end."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from queryable_app.config.avro_schema import parse_avro_schema
from queryable_app.config.topic_spec import TopicSpec, parse_spec
from queryable_app.config.value_schema import SchemaSource
from queryable_app.ingest.stream import view_of
from queryable_app.ingest.transform import check_view
from queryable_app.ingest.value_decoders import value_decoder
from queryable_app.wire.avro import avro_bytes

PROTOC = shutil.which("protoc")
PAGE = (Path(__file__).parents[3] / "docs" / "formats.md").read_text()
RESOURCES = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)

AVRO_TYPES: dict[str, Any] = {
    "null": "null",
    "int": "long",
    "float": "double",
    "string": {"type": "enum", "name": "E", "symbols": ["PAID"]},
    "bytes": "bytes",
    "decimal": {"type": "bytes", "logicalType": "decimal", "precision": 40, "scale": 2},
    "date": {"type": "int", "logicalType": "date"},
    "time-millis": {"type": "int", "logicalType": "time-millis"},
    "timestamp-millis": {"type": "long", "logicalType": "timestamp-micros"},
    "local-timestamp-…": {"type": "long", "logicalType": "local-timestamp-millis"},
    "uuid": {"type": "string", "logicalType": "uuid"},
    "array": {"type": "map", "values": "int"},
    "a union": ["null", "string"],
}
"""A type for each row of the table, by the first word of the row."""


def spec_of(text: str) -> TopicSpec:
    """Return the spec with a resource of the page in it, and with the text of the ConfigMap that it names in its place."""
    given = yaml.safe_load(text)
    source = given.get("value", {}).get("schemaFrom", {})
    if source.pop("configMapRef", None):
        source["inline"] = '"string"'
    return parse_spec({"kafka": {"bootstrapServers": "kafka:9092"}, "topic": "users", **given})


def test_every_block_of_the_page_is_known() -> None:
    """A block that is new needs a test: those of JSON and text are run by the integration tests of their formats."""
    assert Counter(re.findall(r"^```(\w+)$", PAGE, re.MULTILINE)) == {
        "yaml": 7,
        "json": 4,
        "text": 1,
        "sh": 1,
    }
    assert len(RESOURCES) == 7


@pytest.mark.parametrize("text", RESOURCES, ids=[str(n) for n in range(len(RESOURCES))])
def test_resources_of_the_page_are_accepted(spark: SparkSession, text: str) -> None:
    """A resource with the fields of the page is parsed, and its schema is one that the JVM can use."""
    check_view(spark, view_of(spec_of(text)))


def test_first_example_reads_a_record(spark: SparkSession) -> None:
    """A bare record of the schema is the JSON of its fields."""
    of = value_decoder(spark, spec_of(RESOURCES[0]).schema_source, {})
    assert bytes(of.decode(b"\x0e\x02\x08Bonn")) == b'{"id":7,"city":"Bonn"}'


def test_json_schema_of_the_page_checks_values(spark: SparkSession) -> None:
    """The schema of the page takes an object with an id, and no other value."""
    (text,) = (each for each in RESOURCES if "json-schema.org" in each)
    of = value_decoder(spark, spec_of(text).schema_source, {})
    assert bytes(of.decode(b'{"id": 1}')) == b'{"id": 1}'
    with pytest.raises(Py4JJavaError):
        of.decode(b'{"name": 1}')


@pytest.mark.skipif(PROTOC is None, reason="protoc is missing (Debian's protobuf-compiler)")
def test_descriptor_set_of_the_page_reads_a_record(spark: SparkSession, tmp_path: Path) -> None:
    """What the line with protoc writes is taken as `inline`, also of a file that imports another."""
    (line,) = re.findall(r"^```sh\n(protoc .*)\n```", PAGE, re.MULTILINE)
    (resource,) = (yaml.safe_load(each) for each in RESOURCES if "message: shop.User" in each)
    given = resource["value"]["schemaFrom"]
    (tmp_path / "user.proto").write_text(
        given["inline"]
        .replace("package shop;", 'package shop; import "city.proto";')
        .replace("optional string city", "City city")
    )
    (tmp_path / "city.proto").write_text('syntax = "proto3"; package shop; message City { string name = 1; }')
    given["inline"] = subprocess.run(
        ["sh", "-ec", line], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    ).stdout
    decoder = value_decoder(spark, spec_of(yaml.safe_dump(resource)).schema_source, {})
    assert bytes(decoder.decode(b"\x08\x07\x12\x06\x0a\x04Bonn")) == b'{"id":7,"city":{"name":"Bonn"}}'


def rows_of_the_avro_table() -> list[tuple[str, str]]:
    """Return the first word of each row, and its example."""
    table = PAGE.partition("## The JSON of Avro")[2].partition("A field that holds")[0]
    cells = [[cell.strip() for cell in row.split("|")] for row in table.splitlines() if row.startswith("| ")]
    first_words = [re.findall(r"a union|[\w…-]+", row[1])[0] for row in cells[1:]]
    return [(word, row[3].strip("`")) for word, row in zip(first_words, cells[1:], strict=True)]


def test_examples_of_the_avro_table(spark: SparkSession) -> None:
    """Each example of the table is the JSON of a record of the row's type, and the JSON of that record again."""
    rows = rows_of_the_avro_table()
    assert [word for word, _ in rows] == list(AVRO_TYPES)
    for word, example in rows:
        schema = json.dumps(AVRO_TYPES[word])
        record = avro_bytes(parse_avro_schema(schema), example.encode())
        assert bytes(value_decoder(spark, SchemaSource(schema), {}).decode(record)).decode() == example
