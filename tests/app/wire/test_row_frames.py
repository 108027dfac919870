"""Test the frames of the row socket."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryable_app.wire import row_frames
from queryable_app.wire.row_frames import BadRecord, End, FrameError, Hello, SliceHeader, SliceRow

U32 = st.integers(0, 2**32 - 1)
I32 = st.integers(-(2**31), 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
OFFSETS = st.integers(0, 2**63 - 1)
ROWS = st.lists(
    st.builds(
        SliceRow,
        st.binary(max_size=30),
        st.binary(max_size=60),
        st.sampled_from((row_frames.ROW, row_frames.BAD, row_frames.DROPPED, row_frames.NULL_KEY)),
        OFFSETS,
    ),
    max_size=8,
)


def header(rows: Sequence[SliceRow], **others: int) -> SliceHeader:
    plain = SliceHeader(3, 10, 20, 1_700_000_000_000, len(rows), 0, 0, 0, 0, 0, 0)
    return plain._replace(**others)


def payload(frame: bytes) -> bytes:
    """Return a frame without its length, and check the length."""
    assert row_frames.payload_length(frame[:4]) == len(frame) - 4
    return frame[4:]


@given(st.integers(0, 2**64 - 1), I32, I64)
def test_hello_survives_encoding(generation: int, task: int, epoch: int) -> None:
    """A hello is decoded as it was encoded."""
    assert row_frames.decode_hello(payload(row_frames.encode_hello(generation, task, epoch))) == Hello(
        generation, task, epoch
    )


@given(I32, I64)
def test_end_survives_encoding(task: int, epoch: int) -> None:
    """An end is decoded as it was encoded."""
    assert row_frames.decode_end(payload(row_frames.encode_end(task, epoch))) == End(task, epoch)


@given(ROWS, st.tuples(OFFSETS, OFFSETS), I64, st.lists(U32, min_size=6, max_size=6))
def test_slice_survives_encoding(
    rows: list[SliceRow], ends: tuple[int, int], timestamp: int, counts: list[int]
) -> None:
    """A slice's header and rows are decoded as they were encoded, by both decoders."""
    given_header = SliceHeader(3, min(ends), max(ends), timestamp, len(rows), *counts)

    sent = payload(row_frames.encode_slice(given_header, rows))

    assert row_frames.decode_slice_header(sent) == given_header
    assert row_frames.rows(sent, given_header) == rows
    assert row_frames.puts(sent, given_header) == [(row.disk_key, row.stored) for row in rows]


def test_slice_has_the_documented_layout() -> None:
    """A slice has the little-endian layout of docs/protocols.md."""
    head = SliceHeader(1, 2, 3, 4, 1, 5, 6, 7, 8, 9, 10)
    expected = bytes((1,)) + struct.pack("<i", 1)
    expected += b"".join(n.to_bytes(8, "little") for n in (2, 3, 4))
    expected += b"".join(n.to_bytes(4, "little") for n in (1, 5, 6, 7, 8, 9, 10))
    expected += (3).to_bytes(4, "little") + (5).to_bytes(4, "little") + b"\x00" + (2).to_bytes(8, "little")
    expected += b"key" + b"value"
    frame = row_frames.encode_slice(head, [SliceRow(b"key", b"value", row_frames.ROW, 2)])
    assert frame == len(expected).to_bytes(4, "little") + expected


def test_hello_and_end_have_the_documented_layout() -> None:
    """A hello has 25 bytes and an end 13, type included."""
    assert payload(row_frames.encode_hello(7, 8, 9)) == b"\x00" + struct.pack("<IQiq", 1, 7, 8, 9)
    assert payload(row_frames.encode_end(8, 9)) == b"\x02" + struct.pack("<iq", 8, 9)


@given(st.text(max_size=50), st.binary(max_size=50))
def test_bad_record_survives_encoding(reason: str, value: bytes) -> None:
    """A bad record has its reason and its raw value."""
    assert row_frames.decode_bad(row_frames.encode_bad(BadRecord(reason, value))) == BadRecord(reason, value)


@pytest.mark.parametrize("stored", [b"", b"\x01\x00", b"\x05\x00\x00\x00abc"])
def test_truncated_bad_record_is_refused(stored: bytes) -> None:
    """A bad record with a truncated reason is a frame error."""
    with pytest.raises(FrameError):
        row_frames.decode_bad(stored)


def test_other_protocol_version_is_refused() -> None:
    """The refusal of another protocol version names both versions."""
    with pytest.raises(FrameError, match=r"protocol 2, this node 1"):
        row_frames.decode_hello(payload(row_frames.encode_hello(1, 2, 3, protocol=2)))


@given(ROWS.filter(bool), st.data())
def test_truncated_slice_has_no_rows(rows: list[SliceRow], data: st.DataObject) -> None:
    """A truncated slice is a frame error and yields no row."""
    head = header(rows)
    sent = payload(row_frames.encode_slice(head, rows))
    first_row_at = len(payload(row_frames.encode_slice(head, [])))
    cut = sent[: data.draw(st.integers(first_row_at, len(sent) - 1))]
    with pytest.raises(FrameError):
        row_frames.puts(cut, head)
    with pytest.raises(FrameError):
        row_frames.rows(cut, head)


@given(ROWS, st.binary(min_size=1, max_size=5))
def test_slice_with_trailing_bytes_is_refused(rows: list[SliceRow], rest: bytes) -> None:
    """Bytes after the last row are a frame error."""
    head = header(rows)
    sent = payload(row_frames.encode_slice(head, rows)) + rest
    with pytest.raises(FrameError):
        row_frames.puts(sent, head)
    with pytest.raises(FrameError):
        row_frames.rows(sent, head)


@given(ROWS, st.integers(0, 10) | U32)
def test_wrong_number_of_rows_is_refused(rows: list[SliceRow], count: int) -> None:
    """A header with a wrong number of rows is a frame error, at once also for four billion."""
    if count == len(rows):
        return
    head = header(rows)._replace(rows=count)
    sent = payload(row_frames.encode_slice(head, rows))
    with pytest.raises(FrameError):
        row_frames.puts(sent, head)
    with pytest.raises(FrameError):
        row_frames.rows(sent, head)


@pytest.mark.parametrize("field", ["key", "stored"])
def test_length_beyond_the_frame_is_refused(field: str) -> None:
    """A row with more bytes than its frame is a frame error."""
    head = header([SliceRow(b"key", b"value", row_frames.ROW, 10)])
    sent = bytearray(payload(row_frames.encode_slice(head, [SliceRow(b"key", b"value", row_frames.ROW, 10)])))
    at = len(payload(row_frames.encode_slice(head, []))) + (0 if field == "key" else 4)
    sent[at : at + 4] = b"\xff\xff\xff\xff"
    with pytest.raises(FrameError):
        row_frames.puts(bytes(sent), head)
    with pytest.raises(FrameError):
        row_frames.rows(bytes(sent), head)


def test_unknown_kind_of_row_is_refused() -> None:
    """A row of an unknown kind is a frame error."""
    rows = [SliceRow(b"key", b"value", 7, 10)]
    with pytest.raises(FrameError, match="kind 7"):
        row_frames.rows(payload(row_frames.encode_slice(header(rows), rows)), header(rows))


@pytest.mark.parametrize(
    "wrong",
    [{"partition": -1}, {"first_offset": -1}, {"first_offset": 21}],
    ids=["partition", "offset", "order"],
)
def test_impossible_header_is_refused(wrong: dict[str, int]) -> None:
    """A negative partition or offset, and a last offset before the first, are frame errors."""
    with pytest.raises(FrameError, match="a slice of partition"):
        row_frames.decode_slice_header(payload(row_frames.encode_slice(header([], **wrong), [])))


def test_frame_of_another_type_is_refused() -> None:
    """A frame of the right length but another type is a frame error."""
    with pytest.raises(FrameError, match="no frame of type 0"):
        row_frames.decode_hello(b"\x02" + payload(row_frames.encode_hello(1, 2, 3))[1:])
    with pytest.raises(FrameError, match="no frame of type 1"):
        row_frames.decode_slice_header(b"\x00" + payload(row_frames.encode_slice(header([]), []))[1:])
    with pytest.raises(FrameError, match="no frame of type 2"):
        row_frames.decode_end(b"\x01" + payload(row_frames.encode_end(1, 2))[1:])


@given(st.binary(max_size=80))
def test_any_bytes_are_a_frame_or_an_error(raw: bytes) -> None:
    """Any bytes are decoded or raise FrameError."""
    for decode in (
        row_frames.decode_hello,
        row_frames.decode_end,
        row_frames.decode_slice_header,
        row_frames.decode_bad,
    ):
        try:
            decode(raw)
        except FrameError:
            continue


@pytest.mark.parametrize("length", [0, row_frames.PAYLOAD_BYTES_MAX + 1, 2**32 - 1])
def test_frame_length_is_bounded(length: int) -> None:
    """An empty frame and a too large one are refused before they are read."""
    with pytest.raises(FrameError, match=f"a frame of {length} bytes"):
        row_frames.payload_length(length.to_bytes(4, "little"))
