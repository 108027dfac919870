"""Rows from node to node."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryable_app.peer_frames import PeerFrameError, decode_rows, encode_rows

ROWS = st.lists(
    st.tuples(st.binary(max_size=20), st.integers(0, 2**32 - 1), st.binary(max_size=40)), max_size=5
)


@given(ROWS)
def test_rows_come_back_as_they_went(rows: list[tuple[bytes, int, bytes]]) -> None:
    """Head and rows, any bytes."""
    assert decode_rows(encode_rows({"last": True}, rows)) == ({"last": True}, rows)


@given(ROWS.filter(bool), st.data())
def test_a_cut_answer_never_looks_whole(rows: list[tuple[bytes, int, bytes]], data: st.DataObject) -> None:
    """It is an error, or has fewer rows at the end of a whole one."""
    raw = encode_rows({}, rows)
    cut = data.draw(st.integers(0, len(raw) - 1))
    try:
        _, got = decode_rows(raw[:cut])
    except PeerFrameError:
        return
    assert encode_rows({}, got) == raw[:cut]


@pytest.mark.parametrize(
    "raw", [b"", b"\x01", b"\x02\x00\x00\x00[]", b"\x01\x00\x00\x00{", b"\xff\xff\xff\xff{}"], ids=repr
)
def test_what_is_no_answer_is_an_error(raw: bytes) -> None:
    """Never an exception of another kind."""
    with pytest.raises(PeerFrameError):
        decode_rows(raw)
