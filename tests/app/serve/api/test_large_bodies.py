"""Test that the event loop serves other callbacks while a node works on a large body or a large answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from queryable_app.serve.api.multi_get import record_keys
from queryable_app.serve.api.peer_reads import decoded_keys
from queryable_app.serve.api.records import parse_records
from queryable_app.serve.api.request import VALUES_MAX, parse_body, parse_value
from queryable_app.serve.base.step_budget import StepBudget
from queryable_app.serve.reads.multi_get import items_json, plan_lookups
from queryable_app.wire.partitioners import Partitioning
from queryable_app.wire.serde import key_codec

MIB = 1 << 20
KEYS = [b"%06d" % number for number in range(10_000)]
CODEC = key_codec("string")
NODE: Any = SimpleNamespace(
    codec=CODEC,
    settings=SimpleNamespace(multi_get_keys_max=10_000),
    spec=SimpleNamespace(value_format="json"),
    encode_record=None,
)
PARTITIONING = Partitioning("murmur2", 8)


async def passes_during(work: Awaitable[object]) -> int:
    """Return how many passes of the event loop run other callbacks before the work ends."""
    passes = 0

    async def count() -> None:
        nonlocal passes
        while True:
            await asyncio.sleep(0)
            passes += 1

    counting = asyncio.create_task(count())
    await asyncio.sleep(0)
    await work
    counting.cancel()
    return passes


async def records(body: bytes) -> object:
    return await parse_records(body, {}, NODE, StepBudget())


async def value(body: bytes) -> object:
    return await parse_value(body, VALUES_MAX, StepBudget())


async def items() -> object:
    reservation: Any = None
    lookups, _ = await plan_lookups(KEYS, CODEC, PARTITIONING)
    return await items_json(lookups, {}, (), CODEC, None, reservation)


TEXT = b'"%b"' % (b"a" * 2 * MIB)
RECORD = b'{"key":"a","value":%b}'
WORK: dict[str, tuple[Callable[[], Awaitable[object]], int]] = {
    # Counting values takes eight steps; decoding, parsing and encoding take one each.
    "one record": (lambda: records(RECORD % TEXT), 10),
    "one key": (lambda: value(b'{"keys":[%b]}' % TEXT), 9),
    "a thousand records": (lambda: records(b"[%b]" % b",".join([RECORD % (b"[1]" * 1)] * 1000)), 6),
    "ten thousand keys": (lambda: record_keys({"keys": [key.decode() for key in KEYS]}, {}, NODE), 30),
    "the plan of ten thousand keys": (lambda: plan_lookups(KEYS, CODEC, PARTITIONING), 30),
    "the items of ten thousand keys": (items, 60),
    "ten thousand keys from a node": (lambda: decoded_keys({0: ["YWFh"] * 10_000}), 30),
}


@pytest.mark.parametrize("name", WORK)
def test_event_loop_runs_between_the_steps(name: str) -> None:
    """Work whose size a client chooses leaves the event loop to other callbacks after each step."""
    work, least = WORK[name]
    assert asyncio.run(passes_during(work())) >= least


def test_small_body_is_parsed_in_one_step() -> None:
    """A body of a hundred keys is parsed without a pass of the event loop."""

    async def parse() -> None:
        body: Any = await value(b'{"keys":[%b]}' % b",".join([b'"%b"' % key for key in KEYS[:100]]))
        await record_keys(body, {}, NODE)

    assert asyncio.run(passes_during(parse())) == 0


class _Request:
    """Stand in for a request with a body."""

    def __init__(self, body: bytes) -> None:
        self.headers: dict[str, str] = {}
        self._body = body

    async def stream(self) -> AsyncIterator[bytes]:
        yield self._body


@pytest.mark.parametrize(("size", "most"), [(100_000, 1), (1000, 3)], ids=["large", "small"])
def test_one_large_body_is_parsed_at_a_time(size: int, most: int) -> None:
    """The memory to parse large bodies is that of one; small bodies do not wait for each other."""
    parsing = at_once = 0

    async def parse(body: bytes, steps: StepBudget) -> None:
        nonlocal parsing, at_once
        parsing += 1
        at_once = max(at_once, parsing)
        await asyncio.sleep(0)
        parsing -= 1

    async def three() -> None:
        node: Any = SimpleNamespace(parsing_large_body=asyncio.Lock())
        requests: list[Any] = [_Request(b"x" * size) for _ in range(3)]
        await asyncio.gather(*(parse_body(request, node, parse) for request in requests))

    asyncio.run(three())
    assert at_once == most
