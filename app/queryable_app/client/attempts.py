"""Define the protocol between an operation, which decides, and a transport, which sends.

An operation is a generator. It yields a `Step`: the attempts to start now, and the time until which to wait. The transport
sends back the `Event` of the attempt that ends first, or None when that time has come. When the operation returns its result,
the transport drops the attempts that still run.

A part of an operation may return while its attempts run. A later part then receives their events, and ignores them.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Request:
    """Hold one HTTP request, without the address that it goes to."""

    method: str
    target: str  # path and query, percent-encoded
    accept: str = "application/json"
    body: bytes | None = None  # JSON
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Attempt:
    """Hold one request to one address. Compared by identity: a retry is another attempt."""

    address: str
    request: Request
    started: float
    deadline: float


@dataclass(frozen=True, slots=True)
class Response:
    """Hold one HTTP response, read to its end."""

    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes


class FailureKind(Enum):
    """Name why an attempt got no response."""

    NOT_SENT = "no connection"
    CONNECTION_LOST = "the connection broke"  # the request may have arrived
    TIMEOUT = "no answer in time"  # the request may have arrived
    POOL_EXHAUSTED = "too many requests of our own"  # says nothing about the address


@dataclass(frozen=True, slots=True)
class TransportFailure:
    """Hold why an attempt got no response."""

    kind: FailureKind
    detail: str

    @property
    def may_have_arrived(self) -> bool:
        return self.kind in (FailureKind.CONNECTION_LOST, FailureKind.TIMEOUT)


class Event(NamedTuple):
    """Tell the operation that one of its attempts has ended."""

    attempt: Attempt
    outcome: Response | TransportFailure


class Step(NamedTuple):
    """Tell the transport what to start, and until when to wait for an event."""

    start: Sequence[Attempt]
    until: float  # on the operation's clock


Operation = Generator[Step, Event | None, T]


def send_one(attempt: Attempt) -> Operation[Response | TransportFailure]:
    """Run one attempt and return its outcome."""
    event = yield Step((attempt,), attempt.deadline)
    while event is not None and event.attempt is not attempt:
        event = yield Step((), attempt.deadline)
    return timed_out() if event is None else event.outcome


def timed_out() -> TransportFailure:
    return TransportFailure(FailureKind.TIMEOUT, FailureKind.TIMEOUT.value)


def gather(operations: Sequence[Operation[T]]) -> Operation[list[T]]:
    """Run operations concurrently and return their results in order. The first exception ends all of them."""
    results: dict[int, T] = {}
    waits: dict[int, float] = {}
    started_by: dict[Attempt, int] = {}
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
        started_by.update((attempt, index) for attempt in step.start)

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
            elif (
                index := started_by.pop(event.attempt, -1)
            ) in waits:  # otherwise its operation has returned
                advance(index, event)
    finally:
        for operation in operations:
            operation.close()
    return [results[index] for index in range(len(operations))]
