"""`qtopic produce`: write text as records in the topic's formats."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import click

from queryable_app.commands.common import (
    BROKEN,
    DATA,
    INVALID,
    JSON,
    UNREACHABLE,
    described_run,
    fail,
    run_directory,
    with_exit_codes,
)
from queryable_app.config.kafka_settings import KafkaSettingsError, kafka_connection
from queryable_app.config.topic_spec import SpecError, TopicSpec, parse_spec
from queryable_app.errors import Failure
from queryable_app.local.data_directory import RESOURCE_FILE
from queryable_app.local.resource_file import ResourceError, load_resource
from queryable_app.local.topics import KafkaUnreachable, TopicRefused, producing
from queryable_app.wire.avro_forms import record_encoding
from queryable_app.wire.encoded_keys import key_codec_of
from queryable_app.wire.json_text import BadJson, JsonText, read_document, read_json, read_object
from queryable_app.wire.serde import value_from_json, value_from_text

T = TypeVar("T")

Record = tuple[bytes, bytes | None]


@click.command(
    name="produce",
    short_help="Write records to the topic.",
    help=with_exit_codes(
        """Write one record, or one for each line of standard input, and print its partition and offset.

        A line is JSON with `key` and `value`, as in the result of a scan; a `value` of null deletes the key. By default
        the topic, its formats and its Kafka are those of the newest `qtopic run`.

        \b
        qtopic produce user-1 '{"page": "/"}'
        qtopic produce user-1 --delete
        echo '{"key": "user-1", "value": {"page": "/"}}' | qtopic produce
        qtopic produce -f topic.yaml --kafka broker:9092 user-1 '{"page": "/"}'
        """
    ),
)
@click.argument("key", required=False)
@click.argument("value", required=False)
@click.option("--delete", is_flag=True, help="Delete KEY: write a tombstone.")
@click.option(
    "-f",
    "--file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A QueryableTopic with the topic and its formats.",
)
@click.option("--topic", help="Another topic, with string keys and JSON values.")
@click.option("--kafka", metavar="HOST:PORT", help="Another Kafka.")
@DATA
@JSON
def produce_command(
    key: str | None,
    value: str | None,
    delete: bool,
    file: Path | None,
    topic: str | None,
    kafka: str | None,
    data: Path | None,
    as_json: bool,
) -> None:
    if key is not None and (value is None) != delete:
        raise click.UsageError("give KEY and VALUE, or KEY and --delete, or lines on standard input")
    if key is None and delete:
        raise click.UsageError("--delete needs a KEY")
    try:
        bootstrap = kafka or described_run(data)["kafka"]
        spec = _spec(file, topic, bootstrap, data)
        records = _records(spec, sys.stdin) if key is None else iter([_record(spec, key, value)])
        asyncio.run(_produce(spec, bootstrap, records, as_json))
    except (ResourceError, KafkaSettingsError, SpecError) as e:
        fail(INVALID, str(e))
    except Failure as e:
        fail(INVALID, f"{e.detail}: {e.advice}")
    except KafkaUnreachable as e:
        fail(UNREACHABLE, str(e))
    except TopicRefused as e:
        fail(BROKEN, str(e))


def _spec(file: Path | None, topic: str | None, bootstrap: str, data: Path | None) -> TopicSpec:
    """Return the topic and its formats: from the file, from the topic's name, or from the run."""
    if file is not None:
        return load_resource(file).spec
    if topic is not None:
        return TopicSpec(bootstrap, topic)
    document = json.loads((run_directory(data) / RESOURCE_FILE).read_text())
    return parse_spec(document["spec"])


def _record(spec: TopicSpec, key: str, value: str | None) -> Record:
    """Return the record that was typed: a value of a text format verbatim, any other one as JSON."""
    typed = key_codec_of(spec.key_format, spec.key_schema).from_text(key)
    if value is None:
        return typed, None
    if spec.value_format in ("string", "uuid", "bytes"):
        return typed, value_from_text(value, spec.value_format)
    return typed, value_from_json(_read(value, "VALUE", read_json), spec.value_format, record_encoding(spec))


def _records(spec: TopicSpec, lines: Iterable[str]) -> Iterator[Record]:
    codec, encode = key_codec_of(spec.key_format, spec.key_schema), record_encoding(spec)
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"line {number}"
        record = _read(line, where, _members)
        if "key" not in record or "value" not in record:
            raise SpecError(f"{where}: not an object with `key` and `value`")
        value = record["value"]
        yield (
            codec.from_json(record["key"].value),
            None if value.value is None else value_from_json(value, spec.value_format, encode),
        )


def _members(line: str, at: int) -> tuple[dict[str, JsonText], int]:
    if line[at : at + 1] != "{":
        return {}, read_json(line, at)[1]
    return read_object(line, at, lambda _, text, start: read_json(text, start))


def _read(text: str, where: str, read: Callable[[str, int], tuple[T, int]]) -> T:
    try:
        return read_document(text.encode(errors="surrogateescape"), read)
    except BadJson as bad:
        raise SpecError(f"{where}: {bad}") from None


async def _produce(spec: TopicSpec, bootstrap: str, records: Iterator[Record], as_json: bool) -> None:
    connection = kafka_connection(bootstrap, spec.kafka_config)
    async with producing(connection, spec.topic, spec.partitioner) as send:
        for key, value in records:
            partition, offset = await send(key, value)
            if as_json:
                position = f"{partition}:{offset + 1}"
                click.echo(json.dumps({"partition": partition, "offset": offset, "position": position}))
            else:
                click.echo(f"partition {partition}, offset {offset}")
