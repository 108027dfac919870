"""Test header lines, problems, parameters and content negotiation."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryable_app.errors import Failure, Reason
from queryable_app.wire.http_text import (
    BYTES,
    JSON,
    NDJSON,
    as_bytes,
    header_text,
    matches_etag,
    negotiate,
    parse_options,
    parse_query,
    problem_answer,
)


def refusal(decide: Callable[[], object]) -> Reason | None:
    """Return the reason of the refusal, or None."""
    try:
        decide()
    except Failure as failure:
        return failure.reason
    return None


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        ("", JSON),
        ("*/*", JSON),
        ("application/*", JSON),
        ("text/html, */*;q=0.1", JSON),
        ("application/octet-stream", BYTES),
        ("application/json;q=0.5, application/octet-stream", BYTES),
        ("application/octet-stream;q=0, */*", JSON),
        ("APPLICATION/OCTET-STREAM; charset=x", BYTES),
        ("text/html", None),
        ("application/json;q=0", None),
        ("application/json;q=x", None),
        (",;,", None),
    ],
)
def test_type_with_the_highest_quality_is_chosen(accept: str, chosen: str | None) -> None:
    """The first type among equals is chosen; without a match, the failure names Accept."""
    if chosen is not None:
        assert negotiate(accept, (JSON, BYTES)) == chosen
        return
    with pytest.raises(Failure, match="invalid_request: Accept"):
        negotiate(accept, (JSON, BYTES))


@given(st.text(max_size=60))
def test_any_accept_header_is_valid_or_refused(accept: str) -> None:
    """A malformed Accept header is an invalid_request."""
    assert refusal(lambda: negotiate(accept, (JSON, NDJSON))) in (None, Reason.INVALID_REQUEST)


@given(st.binary(max_size=40))
def test_parameter_value_may_be_any_bytes(value: bytes) -> None:
    """Percent-encoded bytes are decoded unchanged."""
    encoded = "".join(f"%{byte:02x}" for byte in value).encode()

    assert as_bytes(parse_query(b"from=" + encoded, ("from",))["from"][0]) == value


@given(st.binary(max_size=60))
def test_any_query_is_valid_or_refused(query: bytes) -> None:
    """An unknown name or a malformed query is an invalid_request."""
    assert refusal(lambda: parse_query(query, ("limit",))) in (None, Reason.INVALID_REQUEST)


def test_headers_between_nodes_are_no_options() -> None:
    """Headers between nodes have the same prefix and are ignored."""
    headers = [(b"qt-forwarded", b"t"), (b"qt-route", b"local"), (b"x", b"y")]

    assert parse_options(headers, ("route",)) == {"route": ["local"]}


@pytest.mark.parametrize(
    ("given_tags", "matches"),
    [
        ('"a"', True),
        ('W/"a"', True),
        ('"b", "a"', True),
        ("*", True),
        ('"b"', False),
        ("a", False),
        ("", False),
    ],
)
def test_entity_tags_compare_weakly(given_tags: str, matches: bool) -> None:
    """A weak tag matches the strong tag of the same value."""
    assert matches_etag(given_tags, '"a"') is matches


@given(st.text())
def test_header_has_no_line_break(text: str) -> None:
    """No text can end its header line."""
    safe = header_text(text)

    assert b"\r" not in safe
    assert b"\n" not in safe


def test_retry_after_is_in_whole_seconds() -> None:
    """Retry-After is rounded up to whole seconds."""
    answer = problem_answer(Failure(Reason.OVERLOADED, "d", "a", retry_after_ms=1200))

    headers = dict(answer.header_list())
    assert (headers[b"retry-after"], answer.status) == (b"2", 429)
    assert json.loads(answer.body)["retryAfterMs"] == 1200
    assert int(headers[b"content-length"]) == len(answer.body)
