"""Test the layout of envelopes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryable_app.wire.envelopes import (
    HEADER_SIZE,
    Envelope,
    EnvelopeError,
    decode_envelope,
    encode_envelope,
)

_I64 = st.integers(-(2**63), 2**63 - 1)
_U64 = st.integers(0, 2**64 - 1)


@st.composite
def envelopes(draw: st.DrawFn) -> Envelope:
    count = draw(st.integers(0, 2**16 - 1))
    return Envelope(
        draw(st.integers(0, 2**32 - 1)),
        draw(st.integers(0, 2**63 - 1)),
        draw(st.integers(0, max(0, count - 1))),
        count,
        draw(_U64),
        draw(_U64),
        draw(_I64),
    )


@given(envelopes(), st.binary(max_size=9))
def test_envelope_and_contribution_survive_the_round_trip(envelope: Envelope, contribution: bytes) -> None:
    """An encoded envelope decodes to itself, and its contribution follows the header."""
    value = encode_envelope(envelope, contribution)
    assert decode_envelope(value) == envelope
    assert value[HEADER_SIZE:] == contribution


def test_layout_is_the_documented_one() -> None:
    """The bytes are those that the JVM writes."""
    written = encode_envelope(Envelope(2, 3, 4, 5, 6, 7, 8), b"x")
    assert written.hex() == "01000000020000000000000003000400050000000000000006" + (
        "0000000000000007000000000000000878"
    )


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b'{"user": 1}',
        encode_envelope(Envelope(0, 0, 0, 1, 1, 1, 0))[:-1],
        b"\x02" + encode_envelope(Envelope(0, 0, 0, 1, 1, 1, 0))[1:],
        encode_envelope(Envelope(0, -1, 0, 1, 1, 1, 0)),
        encode_envelope(Envelope(0, 0, 3, 3, 1, 1, 0)),
    ],
)
def test_other_bytes_are_refused(value: bytes) -> None:
    """A record that the job did not write is refused, and never taken for a row."""
    with pytest.raises(EnvelopeError):
        decode_envelope(value)
