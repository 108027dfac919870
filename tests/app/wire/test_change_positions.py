"""Test that the id of an event is opaque, checked and bound to its topic."""

from __future__ import annotations

import base64
from zlib import crc32

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from queryable_app.wire.change_log import Mark
from queryable_app.wire.change_positions import BadPositions, decode_positions, encode_positions

OFFSETS = st.integers(0, (1 << 63) - 1)
POSITIONS = st.lists(OFFSETS.map(Mark), min_size=1, max_size=20)


@given(POSITIONS, st.text(max_size=20), st.data())
def test_id_survives_encoding(marks: list[Mark], topic: str, data: st.DataObject) -> None:
    """Positions, and how far one partition has caught up from rows, are the same after encoding and decoding."""
    if data.draw(st.booleans()):
        partition = data.draw(st.integers(0, len(marks) - 1))
        marks[partition] = Mark(
            marks[partition].position, data.draw(OFFSETS), data.draw(st.binary(max_size=50))
        )
    assert decode_positions(encode_positions(marks, topic), topic) == marks


def test_key_that_is_too_long_for_an_id_is_left_out() -> None:
    """The partition then begins to catch up anew: the id must fit into a request's head."""
    marks = [Mark(1), Mark(2, 9, b"k" * 40_000)]
    assert decode_positions(encode_positions(marks, "users"), "users") == [Mark(1), Mark(2)]


@given(st.text() | st.text("ABCabc012-_", max_size=100))
@example("A" * 1_000_000)
@example("AQ==")
@example("\\ud800")
def test_text_that_is_no_id_is_refused(text: str) -> None:
    """Nothing but an id is taken for one."""
    with pytest.raises(BadPositions):
        decode_positions(text, "users")


@given(POSITIONS, st.data())
def test_changed_id_is_refused(marks: list[Mark], data: st.DataObject) -> None:
    """An id that was cut or edited is not taken for another one."""
    whole = encode_positions(marks, "users")
    at = data.draw(st.integers(0, len(whole) - 1))
    other = data.draw(st.sampled_from("AB_-09"))
    for changed in (whole[:at], whole[:at] + other + whole[at + 1 :]):
        if changed != whole:
            with pytest.raises(BadPositions):
                decode_positions(changed, "users")


@given(st.binary(max_size=60))
def test_forged_body_is_refused_or_read(body: bytes) -> None:
    """Any content with the right checksum is read or refused, and raises nothing else."""
    head = base64.urlsafe_b64decode(encode_positions([], "users") + "==")[:9]
    raw = head + body
    text = base64.urlsafe_b64encode(raw + crc32(raw).to_bytes(4)).rstrip(b"=").decode()
    try:
        marks = decode_positions(text, "users")
    except BadPositions:
        return
    assert all(0 <= mark.position < 1 << 63 for mark in marks)


def test_id_of_another_topic_is_refused() -> None:
    """An id says which topic its offsets belong to."""
    with pytest.raises(BadPositions, match="another topic"):
        decode_positions(encode_positions([Mark(5)], "users"), "orders")
