"""Define the closed set of reasons why a request fails.

The reason of an answer tells a missing key from missing data, and its advice says what to do next. Any other exception is a
defect: its answer is INTERNAL, with an id that the log has too.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from reprlib import Repr
from typing import Any, Final

_SHORT: Final = Repr()
_SHORT.maxstring = 64


class Reason(Enum):
    """Name each reason, with its HTTP status and its title."""

    INVALID_REQUEST = ("invalid_request", 400, "The request is not valid")
    UNAUTHENTICATED = ("unauthenticated", 401, "Authentication is required")
    FORBIDDEN = ("forbidden", 403, "Not allowed")
    KEY_NOT_FOUND = ("key_not_found", 404, "The key does not exist")
    NO_SUCH_RESOURCE = ("no_such_resource", 404, "The path does not exist")
    NOT_RETAINED = ("not_retained", 410, "The view does not keep what was asked for any more")
    TOO_LARGE = ("too_large", 413, "The request is too large")
    WRONG_OWNER = ("wrong_owner", 421, "This node does not host the partition")
    OVERLOADED = ("overloaded", 429, "The node has too many requests")
    INTERNAL = ("internal", 500, "The node has a defect")
    NOT_AVAILABLE = ("not_available", 503, "No complete replica of the partition can answer")
    NOT_FRESH_ENOUGH = ("not_fresh_enough", 503, "No replica is as fresh as the request requires")
    DEADLINE_EXCEEDED = ("deadline_exceeded", 504, "The deadline passed before an answer was ready")

    def __init__(self, slug: str, status: int, title: str) -> None:
        self.slug = slug
        self.status = status
        self.title = title


REASONS_TO_TRY_ELSEWHERE: Final = (
    Reason.WRONG_OWNER,
    Reason.NOT_AVAILABLE,
    Reason.NOT_FRESH_ENOUGH,
    Reason.NOT_RETAINED,
)
"""Reasons for which another replica may answer, the one that hides the most data first."""


@dataclass(eq=False)  # not frozen: the interpreter sets tracebacks on exceptions
class Failure(Exception):
    """Describe one failed request, with the fields of `application/problem+json`."""

    reason: Reason
    detail: str
    advice: str
    partition: int | None = None
    position: str | None = None
    retry_after_ms: int | None = None
    missing: tuple[int, ...] = ()
    challenge: str = ""
    """The `WWW-Authenticate` header of the answer, or an empty text."""

    def __str__(self) -> str:
        return f"{self.reason.slug}: {self.detail}"

    def problem(self) -> dict[str, Any]:
        """Return the body of the answer, without the fields that do not apply."""
        body: dict[str, Any] = {
            "status": self.reason.status,
            "reason": self.reason.slug,
            "title": self.reason.title,
            "detail": self.detail,
            "advice": self.advice,
        }
        if self.partition is not None:
            body["partition"] = self.partition
        if self.position is not None:
            body["position"] = self.position
        if self.retry_after_ms is not None:
            body["retryAfterMs"] = self.retry_after_ms
        if self.missing:
            body["missing"] = list(self.missing)
        return body


def invalid(field: str, problem: str, advice: str) -> Failure:
    """Return the failure for a field of the request that is wrong."""
    return Failure(Reason.INVALID_REQUEST, f"{field}: {problem}", advice)


def shown(value: object) -> str:
    """Return a short piece of a wrong value, for a message."""
    return _SHORT.repr(value)
