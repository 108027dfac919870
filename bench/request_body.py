"""Measure how long parsing one request's body keeps the event loop, and its peak of memory, for the costliest shapes."""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bench.harness import Result
from queryable_app.contract import NodeSettings
from queryable_app.errors import Failure
from queryable_app.serve.api import multi_get, records
from queryable_app.serve.api.request import _VALUES_MAX as VALUES_MAX
from queryable_app.serve.base.allocator import return_large_blocks
from queryable_app.wire.serde import key_codec

MIB = 1 << 20
BYTES_MAX: Any = NodeSettings.__dataclass_fields__["body_bytes_max"].default
KEYS_MAX: Any = NodeSettings.__dataclass_fields__["multi_get_keys_max"].default


def record_of(value: bytes) -> bytes:
    return b'{"key":"a","value":%b}' % value


def text_of(unit: bytes) -> bytes:
    return record_of(b'"%b"' % (unit * ((BYTES_MAX - 64) // len(unit))))


def array_of(element: bytes, most: int) -> bytes:
    count = min(most, (BYTES_MAX - 64) // (len(element) + 1))
    return record_of(b"[%b]" % b",".join([element] * count))


def keys_of(count: int) -> bytes:
    size = (BYTES_MAX - 64) // count - 3
    return b'{"keys":[%b]}' % b",".join(b'"%0*d"' % (size, number) for number in range(count))


def shapes() -> Iterator[tuple[str, bytes]]:
    yield "one text", text_of(b"a")
    yield "one text of escapes", text_of(b"\\n")
    yield "one text of escaped quotes, brackets", text_of(b'\\"[')
    yield "one text with one emoji", text_of(b"a").replace(b"aaaa", "\U0001f600".encode(), 1)
    yield "small objects", array_of(b'{"a":1}', VALUES_MAX - 2)
    yield "small arrays", array_of(b"[1]", VALUES_MAX - 2)
    yield "objects 90 deep", array_of(b'{"":' * 90 + b"0" + b"}" * 90, VALUES_MAX // 90 - 1)
    yield "small numbers", array_of(b"1", VALUES_MAX)
    yield "numbers of 17 digits", array_of(b"0.12345678901234567", VALUES_MAX)
    yield "numbers of 999 digits", array_of(b"9" * 999, VALUES_MAX)
    yield (
        "1 000 records",
        b"[%b]" % b",".join([record_of(b'"%b"' % (b"a" * (BYTES_MAX // 1000 - 24)))] * 1000),
    )
    each = b",".join([b'{"a":1}'] * (VALUES_MAX // 1000 - 3))
    yield "1 000 records of small objects", b"[%b]" % b",".join([record_of(b"[%b]" % each)] * 1000)
    yield "multi-get of one key", keys_of(1)
    yield f"multi-get of {KEYS_MAX:,} keys", keys_of(KEYS_MAX)


def measure(_directory: Path, quick: bool) -> Iterator[Result]:
    return_large_blocks()
    node: Any = SimpleNamespace(
        codec=key_codec("string"),
        settings=SimpleNamespace(multi_get_keys_max=KEYS_MAX),
        spec=SimpleNamespace(value_format="json"),
    )
    for name, body in shapes():

        def parse(body: bytes = body) -> object:
            if body.startswith(b'{"keys"'):
                return multi_get._record_keys(multi_get._parse_body(body, node), {}, node)
            return records._parse_body(body, {}, node)

        times = sorted(_milliseconds(parse) for _ in range(3 if quick else 15))
        figures: dict[str, float | int | str] = {
            "MiB": round(len(body) / MIB, 2),
            "ms": times[len(times) // 2],
            "min": times[0],
            "memory MiB": _peak_bytes(parse) / MIB,
        }
        yield Result("request_body", name, figures)


def _milliseconds(parse: Callable[[], object]) -> float:
    gc.collect()
    began = time.thread_time()
    try:
        parse()
    except Failure as failure:
        raise AssertionError(failure.detail) from failure
    return (time.thread_time() - began) * 1000


def _peak_bytes(parse: Callable[[], object]) -> int:
    tracemalloc.start()
    parse()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak
