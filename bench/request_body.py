"""Measure the longest step in which parsing one request's body keeps the event loop, and its peak of memory, for the costliest
shapes."""

from __future__ import annotations

import base64
import gc
import time
import tracemalloc
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bench.harness import Result
from queryable_app.contract import NodeSettings
from queryable_app.errors import Failure
from queryable_app.serve.api.multi_get import record_keys
from queryable_app.serve.api.peer_reads import decoded_keys
from queryable_app.serve.api.records import parse_records
from queryable_app.serve.api.request import INTERNAL_VALUES_MAX, VALUES_MAX, parse_value
from queryable_app.serve.base.allocator import return_large_blocks
from queryable_app.serve.base.step_budget import StepBudget
from queryable_app.serve.reads.multi_get import plan_lookups
from queryable_app.wire.partitioners import Partitioning
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


def internal_shapes() -> Iterator[tuple[str, bytes]]:
    keys = b",".join([b'"%b"' % base64.b64encode(b"a" * 75)] * 10_000)
    yield "10 000 keys from another node", b'{"keys":{"0":[%b]}}' % keys


def measure(_directory: Path, quick: bool) -> Iterator[Result]:
    return_large_blocks()
    node: Any = SimpleNamespace(
        codec=key_codec("string"),
        settings=SimpleNamespace(multi_get_keys_max=KEYS_MAX),
        spec=SimpleNamespace(value_format="json"),
        encode_record=None,
    )
    for name, body in shapes():

        async def parse(body: bytes = body) -> None:
            if body.startswith(b'{"keys"'):
                keys = await record_keys(await parse_value(body, VALUES_MAX, StepBudget()), {}, node)
                await plan_lookups(keys, node.codec, Partitioning("murmur2", 8))
            else:
                await parse_records(body, {}, node, StepBudget())

        yield _result(name, body, parse, 3 if quick else 15)

    for name, body in internal_shapes():

        async def parse_internal(body: bytes = body) -> None:
            value = await parse_value(body, INTERNAL_VALUES_MAX, StepBudget())
            await decoded_keys({int(p): texts for p, texts in value["keys"].items()})

        yield _result(name, body, parse_internal, 3 if quick else 15)


def _result(name: str, body: bytes, parse: Callable[[], Coroutine[Any, Any, None]], rounds: int) -> Result:
    runs = [_step_milliseconds(parse()) for _ in range(rounds)]
    longest = sorted(map(max, runs))
    figures: dict[str, float | int | str] = {
        "MiB": round(len(body) / MIB, 2),
        "longest step ms": longest[rounds // 2],
        "min": longest[0],
        "steps": len(runs[0]),
        "all steps ms": sorted(map(sum, runs))[rounds // 2],
        "memory MiB": _peak_bytes(parse()) / MIB,
    }
    return Result("request_body", name, figures)


def _step_milliseconds(work: Coroutine[Any, Any, None]) -> list[float]:
    """Run work whose only pauses are passes of the event loop. Return the CPU time of each step between them."""
    gc.collect()
    steps: list[float] = []
    ended = False
    while not ended:
        began = time.thread_time()
        ended = _step(work)
        steps.append((time.thread_time() - began) * 1000)
    return steps


def _step(work: Coroutine[Any, Any, None]) -> bool:
    """Run work up to its next pause. Return whether it has ended."""
    try:
        work.send(None)
    except StopIteration:
        return True
    except Failure as failure:
        raise AssertionError(failure.detail) from failure
    return False


def _peak_bytes(work: Coroutine[Any, Any, None]) -> int:
    tracemalloc.start()
    while not _step(work):
        pass
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak
