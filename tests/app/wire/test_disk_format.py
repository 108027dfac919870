"""Test the on-disk form of keys, rows and a replica's state."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from queryable_app.wire.disk_format import (
    ROW_HEADER_SIZE,
    KeyOrder,
    ReplicaState,
    Row,
    decode_row,
    encode_row,
    to_disk_key,
    to_record_key,
)

INTS = st.integers(-(2**31), 2**31 - 1)
LONGS = st.integers(-(2**63), 2**63 - 1)
DOUBLES = st.floats(allow_nan=False)
COUNTS = st.integers(0, 2**64 - 1)
ORDERS = st.sampled_from(
    ((KeyOrder.PLAIN, 0), (KeyOrder.SIGNED, 4), (KeyOrder.SIGNED, 8), (KeyOrder.DOUBLE, 8))
)


def on_disk(layout: str, order: str, width: int) -> Callable[[float], bytes]:
    return lambda number: to_disk_key(struct.pack(layout, number), order, width)


@given(INTS, INTS)
@example(-1, 0)
@example(-(2**31), 2**31 - 1)
def test_int_keys_sort_as_numbers(a: int, b: int) -> None:
    """Int keys sort on disk by their values."""
    key = on_disk(">i", KeyOrder.SIGNED, 4)
    assert (key(a) < key(b), key(a) == key(b)) == (a < b, a == b)


@given(LONGS, LONGS)
@example(-1, 0)
@example(-(2**63), 2**63 - 1)
def test_long_keys_sort_as_numbers(a: int, b: int) -> None:
    """Long keys sort on disk by their values."""
    key = on_disk(">q", KeyOrder.SIGNED, 8)
    assert (key(a) < key(b), key(a) == key(b)) == (a < b, a == b)


@given(DOUBLES, DOUBLES)
@example(-math.inf, -1.7976931348623157e308)
@example(math.inf, 1.7976931348623157e308)
@example(-5e-324, -0.0)
@example(0.0, 5e-324)
def test_double_keys_sort_as_numbers(a: float, b: float) -> None:
    """Double keys sort on disk by their values."""
    key = on_disk(">d", KeyOrder.DOUBLE, 8)
    if a < b:
        assert key(a) < key(b)
    elif b < a:
        assert key(b) < key(a)


def test_special_doubles_sort_at_the_ends() -> None:
    """Infinities come first and last, minus zero before zero, and NaN after all."""
    line = [-math.inf, -1.0, -5e-324, -0.0, 0.0, 5e-324, 1.0, math.inf, math.nan]
    keys = [on_disk(">d", KeyOrder.DOUBLE, 8)(number) for number in line]
    assert keys == sorted(set(keys))


@given(st.binary(max_size=12), ORDERS)
def test_key_survives_the_disk(record_key: bytes, order: tuple[str, int]) -> None:
    """A key of any length is the same after it was written and read."""
    assert to_record_key(to_disk_key(record_key, *order), *order) == record_key


@given(st.binary(max_size=12), st.binary(max_size=12), ORDERS)
def test_different_keys_stay_different(a: bytes, b: bytes, order: tuple[str, int]) -> None:
    """Different record keys have different on-disk keys."""
    assert (to_disk_key(a, *order) == to_disk_key(b, *order)) == (a == b)


@given(
    st.builds(
        ReplicaState,
        position=LONGS,
        complete=st.booleans(),
        rows=COUNTS,
        deletes=COUNTS,
        null_keys=COUNTS,
        bad=COUNTS,
        dropped=COUNTS,
        last_timestamp_ms=LONGS,
        mismatches=st.tuples(COUNTS, COUNTS, COUNTS),
    )
)
def test_replica_state_survives_the_disk(state: ReplicaState) -> None:
    """A replica's state is the same after it was written and read."""
    assert ReplicaState.decode(state.encode()) == state


@given(st.builds(Row, LONGS, LONGS, COUNTS, st.none() | st.binary(max_size=50)))
def test_row_survives_the_disk(row: Row) -> None:
    """A row, also a tombstone or an empty value, is the same after it was written and read."""
    assert decode_row(encode_row(row)) == row


def test_row_has_the_layout_of_the_jvm_writer() -> None:
    """A header has 25 bytes, like the JVM writer's: flags, offset, timestamp, expiry, big-endian."""
    stored = encode_row(Row(1, 2, 3, b"value"))
    assert stored == b"\x00" + b"".join(n.to_bytes(8, "big") for n in (1, 2, 3)) + b"value"
    assert len(stored) == ROW_HEADER_SIZE + 5


def test_tombstone_is_a_header_without_value() -> None:
    """A tombstone has its flag set and no value."""
    assert encode_row(Row(1, 2, 0, None)) == b"\x01" + b"".join(n.to_bytes(8, "big") for n in (1, 2, 0))


@pytest.mark.parametrize(
    ("expiry_ms", "value", "live"),
    [
        (0, b"v", True),
        (1001, b"v", True),
        (1000, b"v", False),
        (999, b"v", False),
        (0, b"", True),
        (0, None, False),
    ],
    ids=["never", "later", "now", "past", "empty value", "tombstone"],
)
def test_row_is_live_until_its_expiry(expiry_ms: int, value: bytes | None, live: bool) -> None:
    """A row is readable before the millisecond of its expiry; a tombstone never is."""
    assert Row(1, 2, expiry_ms, value).live(1000) is live
