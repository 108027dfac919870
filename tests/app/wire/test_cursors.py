"""Test that cursors are opaque, checked and bound to their query."""

from __future__ import annotations

import base64
import struct
from zlib import crc32

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from queryable_app.errors import Failure, Reason
from queryable_app.wire.cursors import KEY_BYTES_MAX, Cursor, decode_cursor

CURSORS = st.builds(Cursor, st.binary(max_size=200), st.sampled_from(("asc", "desc")), st.text(max_size=50))


@given(CURSORS)
@example(Cursor(b"", "asc", ""))
@example(Cursor(b"\xff" * KEY_BYTES_MAX, "desc", "/v1/scan"))
def test_cursor_survives_encoding(cursor: Cursor) -> None:
    """A cursor is the same after it was encoded and decoded."""
    assert decode_cursor(cursor.encode(), cursor.scope) == cursor


@given(CURSORS)
def test_cursor_needs_no_escaping(cursor: Cursor) -> None:
    """A URL takes a cursor without escapes."""
    assert set(cursor.encode()) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")


@given(st.text() | st.text("ABCabc012-_", max_size=100))
@example("")
@example("A")
@example("a" * 1_000_000)
@example("é")
@example("AQ==")
@example("\ud800")
def test_text_that_is_no_cursor_is_refused(text: str) -> None:
    """Any text that is no cursor is an invalid_request that names the cursor."""
    with pytest.raises(Failure) as failure:
        decode_cursor(text, "scope")
    assert failure.value.reason is Reason.INVALID_REQUEST
    assert failure.value.detail.startswith("cursor: ")


@given(CURSORS, st.data())
def test_edited_cursor_is_refused(cursor: Cursor, data: st.DataObject) -> None:
    """A cursor with one character changed, added or missing is refused."""
    text = cursor.encode()
    at = data.draw(st.integers(0, len(text) - 1))
    instead = data.draw(
        st.sampled_from(("", "A", "B", "_", "=", "AA", text[at] * 2)).filter(lambda c: c != text[at])
    )

    with pytest.raises(Failure) as failure:
        decode_cursor(text[:at] + instead + text[at + 1 :], cursor.scope)

    assert failure.value.reason is Reason.INVALID_REQUEST


@given(CURSORS, st.text(max_size=50))
def test_cursor_of_another_query_is_refused(cursor: Cursor, scope: str) -> None:
    """The refusal of a cursor says that it belongs to another query."""
    if scope == cursor.scope:
        return
    with pytest.raises(Failure, match="belongs to another query"):
        decode_cursor(cursor.encode(), scope)


def signed(body: bytes) -> str:
    """Return a body with its checksum, as text."""
    return base64.urlsafe_b64encode(body + struct.pack(">I", crc32(body))).rstrip(b"=").decode()


@pytest.mark.parametrize(
    "body",
    [b"", bytes(9), struct.pack(">BB8s", 1, 2, bytes(8))],
    ids=["nothing", "no digest", "an unknown order"],
)
def test_forged_cursor_is_refused(body: bytes) -> None:
    """A forged cursor with a valid checksum is an invalid_request."""
    with pytest.raises(Failure) as failure:
        decode_cursor(signed(body), "scope")
    assert failure.value.reason is Reason.INVALID_REQUEST


def test_cursor_with_a_longer_key_is_refused() -> None:
    """A cursor with a longer key than the limit is refused, also if it is otherwise valid."""
    longest = Cursor(bytes(KEY_BYTES_MAX), "asc", "scope").encode()
    body = base64.urlsafe_b64decode(longest + "=" * (-len(longest) % 4))[:-4]
    assert decode_cursor(signed(body), "scope").last_key == bytes(KEY_BYTES_MAX)
    with pytest.raises(Failure):
        decode_cursor(signed(body + bytes(3)), "scope")


def test_cursor_of_another_release_is_refused() -> None:
    """A cursor of an unknown version is refused with the advice to start again."""
    with pytest.raises(Failure, match="another release") as failure:
        decode_cursor(signed(struct.pack(">BB8s", 99, 0, bytes(8)) + b"key"), "scope")
    assert "start again" in failure.value.advice


def test_cursor_has_exactly_one_text() -> None:
    """A cursor that differs only in bits that base64 ignores is refused."""
    text = Cursor(b"", "asc", "scope").encode()
    assert len(text) % 4 == 3  # two of the last character's bits are unused
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    other = text[:-1] + alphabet[alphabet.index(text[-1]) + 1]
    assert base64.urlsafe_b64decode(other + "=") == base64.urlsafe_b64decode(text + "=")
    with pytest.raises(Failure):
        decode_cursor(other, "scope")


def test_longest_cursor_fits_into_a_request() -> None:
    """The longest cursor fits into a request's head, which has 64 KiB by default."""
    assert len(Cursor(bytes(KEY_BYTES_MAX), "asc", "scope").encode()) < 48 * 1024


def test_key_too_long_for_a_cursor_is_refused() -> None:
    """A page that ends on a key too long for a request fails with advice on how to read on."""
    with pytest.raises(Failure) as failure:
        Cursor(bytes(KEY_BYTES_MAX + 1), "asc", "scope").encode()
    assert failure.value.reason is Reason.TOO_LARGE
    assert "application/x-ndjson" in failure.value.advice
