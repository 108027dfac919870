"""Test the filter of keys: it lacks no key, has few others, and a broken one is refused."""

from __future__ import annotations

import struct
from base64 import b64encode
from collections.abc import Sequence
from contextlib import suppress
from hashlib import blake2b

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queryable_app.wire.key_filter import RATE_MIN, decode_filter, encode_head, encode_segment


def encoded(keys: Sequence[bytes], rate: float, segment_keys: int) -> bytes:
    parts = [keys[start : start + segment_keys] for start in range(0, len(keys), segment_keys)]
    head = encode_head(rate, {"positions": {"0": 7}})
    return head + b"".join(encode_segment(part, rate) for part in parts) + encode_segment((), rate)


@settings(max_examples=200, deadline=None)
@given(
    keys=st.sets(st.binary(max_size=6)).map(sorted),
    rate=st.sampled_from([RATE_MIN, 0.01, 0.5]),
    segment_keys=st.integers(1, 9),
)
def test_no_key_is_missing(keys: list[bytes], rate: float, segment_keys: int) -> None:
    """Every key is in the filter, whatever the segments and the rate are."""
    decoded = decode_filter(encoded(keys, rate, segment_keys))
    assert all(decoded.may_contain(key) for key in keys)
    assert (decoded.keys, decoded.rate, decoded.positions) == (len(keys), rate, {0: 7})


@pytest.mark.parametrize("rate", [0.5, 0.05, 0.01, 0.001])
def test_few_absent_keys_are_taken_for_existing_ones(rate: float) -> None:
    """The rate of false positives is about the one that was asked for."""
    decoded = decode_filter(encoded([b"%06d" % n for n in range(0, 40_000, 2)], rate, 2048))
    wrong = sum(decoded.may_contain(b"%06d" % n) for n in range(1, 40_000, 2))
    assert rate * 0.5 < wrong / 20_000 < rate * 1.6


def test_filter_without_keys_has_none() -> None:
    """An empty view has a filter, in which no key is."""
    assert not decode_filter(encoded([], 0.01, 1)).may_contain(b"")


def test_form_is_the_documented_one() -> None:
    """A reader written from docs/queries.md alone finds the bits of a key."""
    raw = encoded([b"a", b"b"], 0.01, 2)
    head = struct.unpack_from("<I", raw, 5)[0]
    keys, hashes, first_bytes = struct.unpack_from("<III", raw, 9 + head)
    bits = raw[9 + head + 12 + first_bytes : -12]
    assert (raw[:5], keys, hashes, raw[9 + head + 12 :][:first_bytes]) == (b"QTKF\x01", 2, 7, b"a")
    for key in (b"a", b"b"):
        first, second = struct.unpack("<QQ", blake2b(key, digest_size=16).digest())
        at = [((first + n * (second | 1)) % 2**64) % (8 * len(bits)) for n in range(hashes)]
        assert all(bits[each // 8] & (1 << each % 8) for each in at)


@settings(max_examples=300, deadline=None)
@given(cut=st.integers(0, 200), flipped=st.integers(0, 200), value=st.integers(0, 255))
def test_broken_filter_is_refused_or_read(cut: int, flipped: int, value: int) -> None:
    """What is cut off is refused, and no byte raises anything but ValueError."""
    whole = encoded([b"%03d" % n for n in range(40)], 0.01, 16)
    with pytest.raises(ValueError, match="filter of keys"):
        decode_filter(whole[: min(cut, len(whole) - 1)])
    broken = bytearray(whole)
    broken[flipped % len(whole)] = value
    with suppress(ValueError):
        decode_filter(bytes(broken)).may_contain(b"005")


def test_filter_of_prefixes_knows_of_no_other_key() -> None:
    """A filter that names prefixes may contain every key without one of them."""
    prefixes = [b64encode(b"b/").decode(), b64encode(b"c/").decode()]
    head = encode_head(0.01, {"positions": {}, "prefixes": prefixes})
    found = decode_filter(head + encode_segment([b"b/1"], 0.01) + encode_segment((), 0.01))
    answers = {key: found.may_contain(key) for key in (b"b/1", b"b/2", b"a/1", b"c/1")}
    assert answers == {b"b/1": True, b"b/2": False, b"a/1": True, b"c/1": False}


@pytest.mark.parametrize("prefixes", [7, [7], ["!"], None])
def test_broken_prefixes_are_refused(prefixes: object) -> None:
    """A head whose prefixes are no list of base64 is no filter."""
    with pytest.raises(ValueError, match=r"no filter of keys|base64"):
        decode_filter(encode_head(0.01, {"positions": {}, "prefixes": prefixes}) + encode_segment((), 0.01))
