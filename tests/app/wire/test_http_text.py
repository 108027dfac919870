"""Header lines, problems, parameters and content negotiation, as values."""

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
    """Why it was refused; None when it was not."""
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
def test_the_best_liked_type_is_chosen(accept: str, chosen: str | None) -> None:
    """By quality, the first offered one among equals; none is a failure that names Accept."""
    if chosen is not None:
        assert negotiate(accept, (JSON, BYTES)) == chosen
        return
    with pytest.raises(Failure, match="invalid_request: Accept"):
        negotiate(accept, (JSON, BYTES))


@given(st.text(max_size=60))
def test_any_accept_header_is_judged(accept: str) -> None:
    """Nonsense is refused as the caller's mistake."""
    assert refusal(lambda: negotiate(accept, (JSON, NDJSON))) in (None, Reason.INVALID_REQUEST)


@given(st.binary(max_size=40))
def test_a_value_in_a_query_is_any_bytes(value: bytes) -> None:
    """Percent-encoded bytes come out as they went in."""
    encoded = "".join(f"%{byte:02x}" for byte in value).encode()

    assert as_bytes(parse_query(b"from=" + encoded, ("from",))["from"][0]) == value


@given(st.binary(max_size=60))
def test_any_query_is_judged(query: bytes) -> None:
    """Unknown names and nonsense are the caller's mistake, never a defect."""
    assert refusal(lambda: parse_query(query, ("limit",))) in (None, Reason.INVALID_REQUEST)


def test_what_nodes_say_to_one_another_is_no_option() -> None:
    """Their headers have the prefix too, and are passed over."""
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
    """As If-None-Match does."""
    assert matches_etag(given_tags, '"a"') is matches


@given(st.text())
def test_a_header_never_has_a_line_break(text: str) -> None:
    """Whatever a name holds, it cannot end the line that it stands in."""
    safe = header_text(text)

    assert b"\r" not in safe
    assert b"\n" not in safe


def test_a_problem_says_when_to_come_back_in_whole_seconds() -> None:
    """Retry-After knows no milliseconds, and never says zero."""
    answer = problem_answer(Failure(Reason.OVERLOADED, "d", "a", retry_after_ms=1200))

    headers = dict(answer.header_list())
    assert (headers[b"retry-after"], answer.status) == (b"2", 429)
    assert json.loads(answer.body)["retryAfterMs"] == 1200
    assert int(headers[b"content-length"]) == len(answer.body)
