"""Rows and heartbeats survive encoding, and malformed ones are an error."""

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
def test_rows_survive_encoding(rows: list[tuple[bytes, int, bytes]]) -> None:
    """Keys and values may have any bytes."""
    assert decode_rows(encode_rows({"last": True}, rows)) == ({"last": True}, rows)


@given(ROWS.filter(bool), st.data())
def test_truncated_rows_are_never_complete(rows: list[tuple[bytes, int, bytes]], data: st.DataObject) -> None:
    """Decoding fails, unless the cut is at the end of a row."""
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
def test_malformed_rows_are_a_frame_error(raw: bytes) -> None:
    """Decoding raises no other exception."""
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
def test_heartbeat_survives_encoding(
    epoch: int, mismatches: tuple[int, int, int], replicas: dict[int, ReportedReplica], draining: bool
) -> None:
    """The decoded heartbeat has its time of arrival."""
    body = encode_heartbeat(epoch, mismatches, replicas, draining)
    assert decode_heartbeat(body, 7.0) == LastHeartbeat(7.0, epoch, mismatches, replicas, draining)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"null", b"{}", b'{"epoch":1,"mismatches":[0,0],"copies":{}}',
        b'{"epoch":1,"mismatches":[0,0,0],"copies":[]}', b'{"epoch":1,"mismatches":[0,0,0],"copies":{"0":[1]}}',
        b'{"epoch":null,"mismatches":[0,0,0],"copies":{}}', b"\xff",
    ],
    ids=repr,
)  # fmt: skip
def test_malformed_heartbeat_is_a_frame_error(body: bytes) -> None:
    """Decoding raises no other exception."""
    with pytest.raises(PeerFrameError):
        decode_heartbeat(body, 0)
