"""Define the exceptions of the client: one for each reason of the nodes, and two of the client's own.

A key that does not exist is no exception: `get` returns None for it, and only if a complete replica says so.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, ClassVar, Final

from queryable_app.errors import Failure, Reason


class QueryableTopicError(Exception):
    """Base of all exceptions of the client. Its fields are those of the problem that a node answered."""

    reason: ClassVar[Reason]
    others_may_answer: ClassVar[bool] = False
    """Whether another node may answer the same request."""

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
        """The node that answered so; None if the client itself found the problem."""

    @property
    def status(self) -> int:
        """The HTTP status of this reason."""
        return self.reason.status

    def __str__(self) -> str:
        text = f"{self.reason.slug}: {self.detail}" + (f" ({self.advice})" if self.advice else "")
        return f"{text} [{self.address}]" if self.address else text


class InvalidRequest(QueryableTopicError):
    """The request is not valid; `detail` begins with the field."""

    reason = Reason.INVALID_REQUEST


class Unauthenticated(QueryableTopicError):
    """The nodes require authentication."""

    reason = Reason.UNAUTHENTICATED


class Forbidden(QueryableTopicError):
    """The nodes do not allow this request; a write, for instance, if the view takes none."""

    reason = Reason.FORBIDDEN


class NoSuchResource(QueryableTopicError):
    """The nodes have nothing at this path: their version is older or newer than the client's."""

    reason = Reason.NO_SUCH_RESOURCE


class TooLarge(QueryableTopicError):
    """The request or its response is larger than a node allows."""

    reason = Reason.TOO_LARGE


class NotRetained(QueryableTopicError):
    """The view has no versions of so long ago any more."""

    reason = Reason.NOT_RETAINED


class WrongOwner(QueryableTopicError):
    """No node that was tried hosts the partition."""

    reason = Reason.WRONG_OWNER
    others_may_answer = True


class Overloaded(QueryableTopicError):
    """Every node that was tried refused more work, until the deadline."""

    reason = Reason.OVERLOADED
    others_may_answer = True


class InternalError(QueryableTopicError):
    """A node has failed; `detail` has the id that is in its log."""

    reason = Reason.INTERNAL
    others_may_answer = True


class NotAvailable(QueryableTopicError):
    """No complete replica could answer. Whether the key exists is unknown."""

    reason = Reason.NOT_AVAILABLE
    others_may_answer = True


class Unreachable(NotAvailable):
    """No connection: the nodes and the service address do not answer, or are no nodes of a view."""


class NotFreshEnough(QueryableTopicError):
    """Replicas answer, and none is as fresh as the read requires."""

    reason = Reason.NOT_FRESH_ENOUGH
    others_may_answer = True


class DeadlineExceeded(QueryableTopicError):
    """The deadline passed before a node answered."""

    reason = Reason.DEADLINE_EXCEEDED
    others_may_answer = True


class OutcomeUnknown(DeadlineExceeded):
    """A write was sent, and no node confirmed it: the record may be written, or may be written later."""

    others_may_answer = False


_OF_REASON: Final = {
    kind.reason: kind
    for kind in (
        InvalidRequest,
        Unauthenticated,
        Forbidden,
        NoSuchResource,
        NotRetained,
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

# A node that could be reached, and was nearly able to answer, says more than one that could not.
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
    """Return the refusal that tells the caller more."""
    if one is None or _LEAST_SPECIFIC_FIRST.index(type(one)) <= _LEAST_SPECIFIC_FIRST.index(type(other)):
        return other
    return one


def from_failure(failure: Failure) -> QueryableTopicError:
    """Return the exception for a failure that the client found with the nodes' own code."""
    return _OF_REASON[failure.reason](failure.detail, failure.advice)


def reason_of(body: bytes) -> Reason | None:
    """Return the reason of a problem; None if these bytes are no problem of a node."""
    problem = _problem(body)
    return None if problem is None else _BY_SLUG.get(str(problem.get("reason")))


def from_problem(status: int, body: bytes, address: str) -> QueryableTopicError:
    """Return the exception for a response that is not a success. A server that is no node of a view is unreachable."""
    problem = _problem(body) or {}
    kind = _OF_REASON.get(_BY_SLUG.get(str(problem.get("reason"))) or Reason.KEY_NOT_FOUND)
    if kind is None:
        return Unreachable(
            f"{address} answered {status}, and is no node of a view",
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
