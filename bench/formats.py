"""Measure ingest and point reads of the same records as JSON, JSON with a schema, Avro, Avro of a registry, and Protobuf.

The formats are measured in turns, so that a noisy machine affects all alike: each round starts a view of each format over a
filled topic, as `qtopic run` does, takes the rate of its ingest, and then reads random keys with wrk on one core. The ratios are
those to JSON in the same round.
"""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench.harness import Result, document, median
from bench.hydration import AVRO, AVRO_VALUE, VALUE, fill, hydrate
from bench.point_read import WRK_SCRIPT, closed_loop
from tests.integration.system import System
from tests.support.kafka import embedded_kafka
from tests.support.schema_registry import framed, schema_registry

PROTOBUF = """syntax = "proto3";
message Customer { string name = 1; string status = 2; double amount = 3; string city = 4; string pad = 5; }"""
PROTOBUF_VALUE = (
    b"\x0a\x08customer\x12\x06active\x19" + struct.pack("<d", 12345.67) + b"\x22\x06Munich\x2a\x0c%012d"
)
JSON_SCHEMA = json.dumps(
    {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "required": ["name", "amount"],
        "properties": {
            "name": {"type": "string", "maxLength": 100},
            "status": {"enum": ["active", "closed"]},
            "amount": {"type": "number", "minimum": 0},
            "city": {"type": "string"},
            "pad": {"type": "string", "pattern": "^[0-9]{12}$"},
        },
        "additionalProperties": False,
    }
)
ACCEPTED = {"avro": ("application/avro", "application/avro+json")}
"""The media types that reads of a format ask for, besides JSON."""

_CONNECTIONS = (
    4  # a node refuses more than it can answer soon, and reads of Avro cost more than those of JSON
)

Figures = dict[str, float | int | str]


def measure(directory: Path, quick: bool) -> Iterator[Result]:
    rounds, count, seconds = (1, 30_000, 1) if quick else (4, 500_000, 5)
    with embedded_kafka(directory / "broker") as kafka, schema_registry() as registry:
        id_ = registry.register("customers-value", AVRO)
        values: dict[str, tuple[bytes, dict[str, Any]]] = {
            "json": (VALUE, {}),
            "json-schema": (VALUE, {"schemaFrom": {"inline": JSON_SCHEMA}}),
            "avro": (AVRO_VALUE, {"format": "avro", "schemaFrom": {"inline": AVRO}}),
            "avro-registry": (framed(id_, AVRO_VALUE), {"format": "avro", "schemaFrom": {"registryUrl": registry.url}}),
            "protobuf": (PROTOBUF_VALUE, {"format": "protobuf", "schemaFrom": {"inline": PROTOBUF}}),
        }  # fmt: skip
        for format, (value, _) in values.items():
            fill(kafka.bootstrap, format, count, value)
        taken: dict[str, list[Figures]] = {format: [] for format in values}
        for turn in range(rounds):
            for format, (_, source) in values.items():
                place = directory / f"{format}-{turn}"
                spec = document(format, kafka.bootstrap, value=source)
                asked = ACCEPTED.get(format, ())

                def reads(system: System, place: Path = place, asked: tuple[str, ...] = asked) -> Figures:
                    return _read_rates(system, place, asked, count, seconds)

                taken[format].append(hydrate(place, spec, count, reading=False, then=reads))
    for format, figures in taken.items():
        yield Result("formats", format, _summary(figures, taken["json"]))


def _read_rates(
    system: System, directory: Path, accepted: tuple[str, ...], keys: int, seconds: int
) -> Figures:
    """Return the point reads per second of one core's load, for JSON and for each other media type."""
    if shutil.which("wrk") is None:
        print("the reads of `formats` need wrk (Debian: apt-get install wrk)")
        return {}
    port = urlsplit(system.url()).port
    assert port is not None
    rates: Figures = {}
    for media_type in ("application/json", *accepted):
        script = directory / "wrk.lua"
        accept = f'wrk.headers["Accept"] = "{media_type}"\n'
        script.write_text(accept + WRK_SCRIPT.replace("KEYS", str(keys)))
        name = "reads/s" if media_type == "application/json" else f"reads/s {media_type}"
        rates[name] = closed_loop(port, script, seconds, connections=_CONNECTIONS)
    return rates


def _summary(rounds: list[Figures], of_json: list[Figures]) -> Figures:
    """Return the medians, and for rates the median ratio to JSON in the same round."""
    summary: Figures = {}
    for name in rounds[0]:
        numbers = [float(each[name]) for each in rounds]
        summary[name] = median(numbers)
        beside = "reads/s" if name.startswith("reads/s") else name
        if name.startswith(("rows/s", "reads/s")) and beside in of_json[0]:
            ratios = [n / float(each[beside]) for n, each in zip(numbers, of_json, strict=True)]
            summary[f"{name} x JSON"] = f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    return summary
