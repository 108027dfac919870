"""What a request can end in besides an answer: one exception for each of the nodes' reasons, and two of the client's own.

A key that does not exist is no exception: `get` answers None for it, and only on the word of a complete copy.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, ClassVar, Final

from queryable_app.errors import Failure, Reason


class QueryableTopicError(Exception):
    """Any of them. The fields are those of the problem that a node answered."""

    reason: ClassVar[Reason]
    others_may_answer: ClassVar[bool] = False
    """Another node may well answer the same request."""

    def __init__(
        self,
        detail: str,
        advice: str = "",
        *,
        partition: int | None = None,
        position: str | None = None,
        missing: Iterable[int] = (),
        retry_after_ms: int | None = None,
        address: str | None = None,
    ) -> None:
        super().__init__(detail, advice)
        self.detail = detail
        self.advice = advice
        self.partition = partition
        self.position = position
        self.missing = tuple(missing)
        self.retry_after_ms = retry_after_ms
        self.address = address
        """Who said so; None when it was the client."""

    @property
    def status(self) -> int:
        """The HTTP status of this reason."""
        return self.reason.status

    def __str__(self) -> str:
        said = f"{self.reason.slug}: {self.detail}" + (f" ({self.advice})" if self.advice else "")
        return f"{said} [{self.address}]" if self.address else said


class InvalidRequest(QueryableTopicError):
    """The caller's mistake; the detail begins with the field."""

    reason = Reason.INVALID_REQUEST


class Unauthenticated(QueryableTopicError):
    """The nodes do not know who is asking."""

    reason = Reason.UNAUTHENTICATED


class Forbidden(QueryableTopicError):
    """The nodes know, and do not allow it; writes, for instance, where the view takes none."""

    reason = Reason.FORBIDDEN


class NoSuchResource(QueryableTopicError):
    """The nodes have nothing at this path: they are older or newer than this client."""

    reason = Reason.NO_SUCH_RESOURCE


class TooLarge(QueryableTopicError):
    """More at once than a node reads or answers."""

    reason = Reason.TOO_LARGE


class WrongOwner(QueryableTopicError):
    """No node that was asked holds the partition."""

    reason = Reason.WRONG_OWNER
    others_may_answer = True


class Overloaded(QueryableTopicError):
    """Every node that was asked had all the work it takes, until the deadline."""

    reason = Reason.OVERLOADED
    others_may_answer = True


class InternalError(QueryableTopicError):
    """Something broke in a node; the detail has the id that is in its log."""

    reason = Reason.INTERNAL
    others_may_answer = True


class NotAvailable(QueryableTopicError):
    """No complete copy could answer. It says nothing about whether the key exists."""

    reason = Reason.NOT_AVAILABLE
    others_may_answer = True


class Unreachable(NotAvailable):
    """Not even a connection: the nodes and the service address are away, or no nodes of a view."""


class NotFreshEnough(QueryableTopicError):
    """Copies are there, and none is as fresh as was asked for."""

    reason = Reason.NOT_FRESH_ENOUGH
    others_may_answer = True


class DeadlineExceeded(QueryableTopicError):
    """The deadline passed before there was an answer."""

    reason = Reason.DEADLINE_EXCEEDED
    others_may_answer = True


class OutcomeUnknown(DeadlineExceeded):
    """A write was sent and nobody said what became of it: it may have been carried out, or may be yet."""

    others_may_answer = False


_OF_REASON: Final = {
    kind.reason: kind
    for kind in (
        InvalidRequest,
        Unauthenticated,
        Forbidden,
        NoSuchResource,
        TooLarge,
        WrongOwner,
        Overloaded,
        InternalError,
        NotAvailable,
        NotFreshEnough,
        DeadlineExceeded,
    )
}
_BY_SLUG: Final = {reason.slug: reason for reason in Reason}

# Of several refusals the one that tells most: who could be reached and was nearly there weighs more.
_LEAST_SPECIFIC_FIRST: Final = (
    Unreachable,
    WrongOwner,
    DeadlineExceeded,
    Overloaded,
    InternalError,
    NotAvailable,
    NotFreshEnough,
)


def more_specific(one: QueryableTopicError | None, other: QueryableTopicError) -> QueryableTopicError:
    """Which of two refusals the caller should see."""
    if one is None or _LEAST_SPECIFIC_FIRST.index(type(one)) <= _LEAST_SPECIFIC_FIRST.index(type(other)):
        return other
    return one


def from_failure(failure: Failure) -> QueryableTopicError:
    """What the client found wrong itself, with the nodes' own code."""
    return _OF_REASON[failure.reason](failure.detail, failure.advice)


def reason_of(body: bytes) -> Reason | None:
    """The reason that a problem states; None when these bytes are no problem of a node."""
    problem = _problem(body)
    return None if problem is None else _BY_SLUG.get(str(problem.get("reason")))


def from_problem(status: int, body: bytes, address: str) -> QueryableTopicError:
    """The exception for an answer that is not a success. Whoever is no node of a view cannot be asked."""
    problem = _problem(body) or {}
    kind = _OF_REASON.get(_BY_SLUG.get(str(problem.get("reason"))) or Reason.KEY_NOT_FOUND)
    if kind is None:
        return Unreachable(
            f"{address} answered {status}, and not as a node of a view does",
            "check the address",
            address=address,
        )
    return kind(
        str(problem.get("detail", "")),
        str(problem.get("advice", "")),
        partition=_number(problem.get("partition")),
        position=str(problem["position"]) if "position" in problem else None,
        missing=[number for p in _list(problem.get("missing")) if (number := _number(p)) is not None],
        retry_after_ms=_number(problem.get("retryAfterMs")),
        address=address,
    )


def _problem(body: bytes) -> dict[str, Any] | None:
    try:
        problem = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return problem if isinstance(problem, dict) else None


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
