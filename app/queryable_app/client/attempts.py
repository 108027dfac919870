"""How the core says what to do, and hears what came of it. Nothing here touches the network.

An operation is a generator. It yields a `Step`: requests to begin now, and a moment until which to wait. It is sent the
`Event` of whichever of its exchanges ends first, or None when the moment has come. What it returns is the result; exchanges
that are still running then are of no interest any more. Whoever carries operations out needs to know nothing else.

A part of an operation may end while its exchanges run, so that a later part hears of them: an event of somebody else's
exchange is to be passed over.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    target: str  # path and query, percent-encoded
    accept: str = "application/json"
    body: bytes | None = None  # JSON
    writes: bool = False  # must not be repeated once it may have arrived


@dataclass(frozen=True, slots=True, eq=False)
class Attempt:
    """A request to one address. Two with the same fields are two."""

    address: str
    request: Request
    started: float
    deadline: float


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes


class FailureKind(Enum):
    """How an exchange was lost."""

    NOT_SENT = "no connection"
    CONNECTION_LOST = "the connection broke"  # the request may have arrived
    TIMEOUT = "no answer in time"  # as may this one
    POOL_EXHAUSTED = "too many requests of our own"  # the address is not to blame


@dataclass(frozen=True, slots=True)
class TransportFailure:
    """There is no answer."""

    how: FailureKind
    detail: str

    @property
    def sent(self) -> bool:
        return self.how in (FailureKind.CONNECTION_LOST, FailureKind.TIMEOUT)


class Event(NamedTuple):
    attempt: Attempt
    outcome: Response | TransportFailure


class Step(NamedTuple):
    start: Sequence[Attempt]
    until: float  # on the core's clock


Operation = Generator[Step, Event | None, T]


def send_one(attempt: Attempt) -> Operation[Response | TransportFailure]:
    """What comes of one exchange."""
    event = yield Step((attempt,), attempt.deadline)
    while event is not None and event.attempt is not attempt:
        event = yield Step((), attempt.deadline)
    return (
        TransportFailure(FailureKind.TIMEOUT, FailureKind.TIMEOUT.value) if event is None else event.outcome
    )


def gather(operations: Sequence[Operation[T]]) -> Operation[list[T]]:
    """Several operations at once; their results in order. The first failure ends them all."""
    results: dict[int, T] = {}
    waits: dict[int, float] = {}
    asked_by: dict[Attempt, int] = {}
    starting: list[Attempt] = []

    def advance(index: int, event: Event | None) -> None:
        try:
            step = operations[index].send(event)
        except StopIteration as end:
            results[index] = end.value
            waits.pop(index, None)
            return
        waits[index] = step.until
        starting.extend(step.start)
        asked_by.update((attempt, index) for attempt in step.start)

    try:
        for index in range(len(operations)):
            advance(index, None)
        while waits:
            until = min(waits.values())
            event = yield Step(tuple(starting), until)
            starting.clear()
            if event is None:
                for index in [index for index, moment in waits.items() if moment <= until]:
                    advance(index, None)
            elif (asking := asked_by.pop(event.attempt, -1)) in waits:  # else nobody waits for it any more
                advance(asking, event)
    finally:
        for operation in operations:
            operation.close()
    return [results[index] for index in range(len(operations))]
