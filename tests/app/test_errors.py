"""Test the closed set of failures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from queryable_app.errors import Failure, Reason, invalid, shown


def test_reasons_and_statuses_are_the_published_ones() -> None:
    """A new reason or status is a change of the contract with clients."""
    assert {reason.slug: reason.status for reason in Reason} == {
        "invalid_request": 400,
        "unauthenticated": 401,
        "forbidden": 403,
        "key_not_found": 404,
        "no_such_resource": 404,
        "not_retained": 410,
        "too_large": 413,
        "wrong_owner": 421,
        "overloaded": 429,
        "internal": 500,
        "not_available": 503,
        "not_fresh_enough": 503,
        "deadline_exceeded": 504,
    }


def test_problem_has_every_known_field() -> None:
    """A problem's body has the reason, the detail, the advice and the optional fields that are set."""
    failure = Failure(
        Reason.NOT_AVAILABLE, "what", "do", partition=3, position="3:7", retry_after_ms=500, missing=(3, 4)
    )
    assert failure.problem() == {
        "status": 503,
        "reason": "not_available",
        "title": "No complete replica of the partition can answer",
        "detail": "what",
        "advice": "do",
        "partition": 3,
        "position": "3:7",
        "retryAfterMs": 500,
        "missing": [3, 4],
    }


def test_problem_has_no_field_without_a_value() -> None:
    """Fields without a value are absent, and partition 0 is a value."""
    assert set(Failure(Reason.INTERNAL, "what", "do").problem()) == {
        "status",
        "reason",
        "title",
        "detail",
        "advice",
    }
    assert Failure(Reason.NOT_AVAILABLE, "what", "do", partition=0, retry_after_ms=0).problem().items() >= {
        ("partition", 0),
        ("retryAfterMs", 0),
    }


def test_invalid_names_its_field() -> None:
    """The detail of an invalid request begins with the field."""
    failure = invalid("limit", "is 0", "give 1 to 10000")
    assert (failure.reason, failure.detail, failure.advice) == (
        Reason.INVALID_REQUEST,
        "limit: is 0",
        "give 1 to 10000",
    )


def test_failure_can_be_raised() -> None:
    """A failure is an exception with its reason and detail as text."""
    with pytest.raises(Failure, match=r"^invalid_request: limit: is 0$"):
        raise invalid("limit", "is 0", "give 1 to 10000")


def test_failure_passes_through_a_context_manager() -> None:
    """A generator's context manager can set the traceback of a failure."""

    @contextmanager
    def around() -> Iterator[None]:
        yield

    with pytest.raises(Failure, match="limit"), around():
        raise invalid("limit", "is 0", "give 1 to 10000")


@pytest.mark.parametrize(
    "value", ["x" * 1_000_000, ["x"] * 1_000_000, {str(i): i for i in range(1000)}, 10**4000, b"x" * 1_000_000, "\ud800"],
    ids=["text", "list", "dict", "int", "bytes", "surrogate"],
)  # fmt: skip
def test_shown_value_is_short(value: object) -> None:
    """A message shows a short piece of a wrong value."""
    assert len(shown(value).encode()) < 120
