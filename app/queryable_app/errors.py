"""The closed set of ways in which a request can fail.

Whoever reads an answer can tell a missing key from missing data, and what to do next from the advice. There
is no other failure: an exception that is not one of these is a defect, answered as INTERNAL with an id that
is in the log.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from reprlib import Repr
from typing import Any, Final

_SHORT: Final = Repr()
_SHORT.maxstring = 64


class Reason(Enum):
    """Each reason with its HTTP status and its title."""

    INVALID_REQUEST = ("invalid_request", 400, "The request is not valid")
    UNAUTHENTICATED = ("unauthenticated", 401, "Who is asking is not known")
    FORBIDDEN = ("forbidden", 403, "Not allowed")
    KEY_NOT_FOUND = ("key_not_found", 404, "The key does not exist")
    NO_SUCH_RESOURCE = ("no_such_resource", 404, "There is nothing at this path")
    TOO_LARGE = ("too_large", 413, "The request is too large")
    WRONG_OWNER = ("wrong_owner", 421, "This node does not hold the partition")
    OVERLOADED = ("overloaded", 429, "The node has all the work it can take")
    INTERNAL = ("internal", 500, "Something broke on our side")
    NOT_AVAILABLE = ("not_available", 503, "No complete copy of the partition can answer")
    NOT_FRESH_ENOUGH = ("not_fresh_enough", 503, "No copy is as fresh as was asked for")
    DEADLINE_EXCEEDED = ("deadline_exceeded", 504, "The deadline passed before there was an answer")

    def __init__(self, slug: str, status: int, title: str) -> None:
        self.slug = slug
        self.status = status
        self.title = title


REASONS_TO_TRY_ELSEWHERE: Final = (Reason.WRONG_OWNER, Reason.NOT_AVAILABLE, Reason.NOT_FRESH_ENOUGH)
"""Why one replica cannot answer although another may, beginning with the reason that concerns a caller most."""


@dataclass(eq=False)  # not frozen: the interpreter hangs tracebacks on exceptions
class Failure(Exception):
    """One failed request, ready to become `application/problem+json`."""

    reason: Reason
    detail: str
    advice: str
    partition: int | None = None
    position: str | None = None
    retry_after_ms: int | None = None
    missing: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.reason.slug}: {self.detail}"

    def problem(self) -> dict[str, Any]:
        """The body of the answer; fields that do not apply are absent."""
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
    """The caller's mistake, naming the field it made it in."""
    return Failure(Reason.INVALID_REQUEST, f"{field}: {problem}", advice)


def shown(value: object) -> str:
    """Enough of a wrong value to recognise it, never a megabyte of it."""
    return _SHORT.repr(value)
