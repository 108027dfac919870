"""The stages of a read over many rows: their order, their bounds and their end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Generator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryable_app.serve.base.peer_frames import RawRow
from queryable_app.serve.reads import scans
from queryable_app.serve.reads.scans import Bounds, local_rows, merge_sources, to_lines
from queryable_app.wire.disk_format import Row, encode_row
from queryable_app.wire.serde import key_codec, value_to_json


class Away(Exception):
    """Stand for the failure of a node."""


async def _slow(closed: list[str]) -> AsyncGenerator[list[RawRow], None]:
    try:
        await asyncio.sleep(60)
        yield []
    finally:
        closed.append("slow")


async def _failing() -> AsyncGenerator[list[RawRow], None]:
    rows: list[list[RawRow]] = []
    for batch in rows:
        yield batch
    raise Away


def test_failing_source_ends_the_merge_while_another_is_read() -> None:
    """The merge raises the failure of one source, and closes another one that still waits for its rows."""
    closed: list[str] = []

    async def read() -> None:
        async for _ in merge_sources([_slow(closed), _failing()], reverse=False):
            pass

    with pytest.raises(Away):
        asyncio.run(read())
    assert closed == ["slow"]


class _Store:
    """Stand in for a store: yield these rows, and count how many bytes were read."""

    def __init__(self, rows: Sequence[tuple[bytes, bytes]]) -> None:
        self._all = rows
        self.read_bytes = 0

    def rows(
        self, start: bytes | None, stop: bytes | None, reverse: bool
    ) -> Generator[tuple[bytes, bytes], None, None]:
        for key, stored in reversed(self._all) if reverse else self._all:
            self.read_bytes += len(stored)
            yield key, stored


def replicas_of(stores: Sequence[_Store]) -> list[Any]:
    return [SimpleNamespace(partition=n, store=store) for n, store in enumerate(stores)]


async def _no_slot() -> None:
    pass


def read_all(stores: Sequence[_Store], reverse: bool) -> list[RawRow]:
    async def read() -> list[RawRow]:
        bounds = Bounds(reverse=reverse)
        return [row async for batch in local_rows(replicas_of(stores), bounds, _no_slot) for row in batch]

    return asyncio.run(read())


KEYS = st.lists(st.binary(min_size=1, max_size=2), unique=True, max_size=40).map(sorted)


@given(st.lists(KEYS, min_size=1, max_size=5), st.booleans(), st.integers(1, 9), st.integers(1, 60))
def test_rows_of_replicas_are_merged_in_key_order(
    keys: list[list[bytes]], reverse: bool, rows_max: int, bytes_max: int
) -> None:
    """A read of several replicas has every row once, in key order, whatever the size of its batches."""
    stores = [_Store([(key, b"v" * (key[0] % 30)) for key in sorted_keys]) for sorted_keys in keys]
    expected = sorted(
        [(key, n, stored) for n, store in enumerate(stores) for key, stored in store._all], reverse=reverse
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scans, "BATCH_ROWS", rows_max)
        patch.setattr(scans, "BATCH_BYTES", bytes_max)
        assert read_all(stores, reverse) == expected


def test_rows_read_ahead_are_bounded() -> None:
    """However large the rows are, a read holds no more than a few batches of them."""
    large = b"v" * (scans.BATCH_BYTES // 8)
    stores = [_Store([(b"%d%03d" % (n, row), large) for row in range(100)]) for n in range(4)]

    async def peak() -> int:
        most = given_out = 0
        async for batch in local_rows(replicas_of(stores), Bounds(), _no_slot):
            most = max(most, sum(store.read_bytes for store in stores) - given_out)
            given_out += sum(len(stored) for _, _, stored in batch)
        return most

    # Twice a replica's share of a batch, and a row, for each replica.
    assert asyncio.run(peak()) <= 2 * scans.BATCH_BYTES + 4 * len(large)


def test_lines_have_live_rows_only() -> None:
    """An empty value is a value; a tombstone and an expired row are none."""
    rows = [
        (b"a", 0, encode_row(Row(1, 2, 0, b""))),
        (b"b", 0, encode_row(Row(2, 2, 0, None))),
        (b"c", 0, encode_row(Row(3, 2, 1, b"x"))),
        (b'"\xc3\xa9', 1, encode_row(Row(4, 2, 0, b"\n"))),
    ]
    lines = to_lines(key_codec("string"), partial(value_to_json, format="string"))(rows)
    assert [(key, json.loads(line)["key"], json.loads(line)["value"]) for key, line in lines] == [
        (b"a", "a", ""),
        (b'"\xc3\xa9', '"\u00e9', "\n"),
    ]
