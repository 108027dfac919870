"""Rows from node to node."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryable_app.policy.routing import LastHeartbeat, ReportedReplica
from queryable_app.serve.base.peer_frames import (
    PeerFrameError,
    decode_heartbeat,
    decode_rows,
    encode_heartbeat,
    encode_rows,
)

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


@given(
    st.integers(0, 2**53),
    st.tuples(st.integers(0), st.integers(0), st.integers(0)),
    st.dictionaries(
        st.integers(0, 999), st.builds(ReportedReplica, st.integers(0), st.integers(-1), st.booleans())
    ),
    st.booleans(),
)
def test_a_heartbeat_comes_back_as_it_went(
    epoch: int, mismatches: tuple[int, int, int], replicas: dict[int, ReportedReplica], draining: bool
) -> None:
    """With the moment at which it came."""
    said = encode_heartbeat(epoch, mismatches, replicas, draining)
    assert decode_heartbeat(said, 7.0) == LastHeartbeat(7.0, epoch, mismatches, replicas, draining)


@pytest.mark.parametrize(
    "words",
    [
        b"", b"[]", b"null", b"{}", b'{"epoch":1,"mismatches":[0,0],"copies":{}}',
        b'{"epoch":1,"mismatches":[0,0,0],"copies":[]}', b'{"epoch":1,"mismatches":[0,0,0],"copies":{"0":[1]}}',
        b'{"epoch":null,"mismatches":[0,0,0],"copies":{}}', b"\xff",
    ],
    ids=repr,
)  # fmt: skip
def test_what_is_no_heartbeat_is_an_error(words: bytes) -> None:
    """Always the same one."""
    with pytest.raises(PeerFrameError):
        decode_heartbeat(words, 0)
