"""Test the estimate of keys against the exact number, for keys of every shape."""

from __future__ import annotations

import struct
from collections.abc import Callable
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryable_app.serve.store.key_sample import SAMPLE_MAX, KeySample
from queryable_app.wire.disk_format import Row, encode_row

NOW_MS = 1_700_000_000_000

writes = st.lists(
    st.tuples(st.binary(max_size=2), st.none() | st.sampled_from([0, NOW_MS - 1, NOW_MS + 1])), max_size=40
)


def stored(value: bytes | None, expiry_ms: int = 0) -> bytes:
    return encode_row(Row(1, 1, expiry_ms, value))


@given(writes)
def test_few_keys_are_counted_exactly(history: list[tuple[bytes, int | None]]) -> None:
    """Updates count once; deleted and expired keys do not count."""
    sample = KeySample(whole=True)
    readable: dict[bytes, bool] = {}
    for key, expiry_ms in history:
        sample.note(key, stored(None if expiry_ms is None else b"v", expiry_ms or 0))
        readable[key] = expiry_ms is not None and expiry_ms != NOW_MS - 1
    assert sample.count(NOW_MS) == sum(readable.values())


@pytest.mark.parametrize(
    "key",
    [
        b"user-%d".__mod__,
        struct.Struct(">q").pack,
        lambda n: struct.pack(">q", n * 1000),
        lambda n: struct.pack(">d", float(n)),
        lambda n: b"%d" % (n * 4 + (-crc32(b"%d" % n)) % 4),
    ],
    ids=["text", "long", "steps", "double", "other"],
)
def test_many_keys_are_counted_within_a_fifth(key: Callable[[int], bytes]) -> None:
    """Three versions of each of 60 000 keys and a third of them deleted: the count is of the keys that are left."""
    sample = KeySample(whole=True)
    for version in range(3):
        for n in range(60_000):
            sample.note(key(n), stored(None if version == 2 and n % 3 == 0 else b"v"))
    assert sample.count(NOW_MS) == pytest.approx(40_000, rel=0.2)


def test_sample_is_bounded() -> None:
    """However many keys there are, the memory is that of a few."""
    sample = KeySample(whole=True)
    for n in range(20_000):
        sample.note(b"%d" % n, stored(b"v"))
        assert len(sample._expiry_ms) <= SAMPLE_MAX


def test_store_with_rows_has_no_count_before_a_walk() -> None:
    """A store that opened with rows has no estimate until a walk is complete."""
    sample = KeySample(whole=False)
    sample.note(b"a", stored(b"v"))
    assert sample.count(NOW_MS) is None
    sample.whole = True
    assert sample.count(NOW_MS) == 1


def test_removed_row_does_not_count() -> None:
    """Rows that the sweeper removes leave the sample."""
    sample = KeySample(whole=True)
    sample.note(b"a", stored(b"v", NOW_MS + 1))
    sample.forget(b"a")
    assert sample.count(NOW_MS) == 0
