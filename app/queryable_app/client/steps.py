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
class Exchange:
    """A request to one address. Two with the same fields are two."""

    address: str
    request: Request
    started: float
    deadline: float


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes


class How(Enum):
    """How an exchange was lost."""

    NOT_SENT = "no connection"
    CUT = "the connection broke"  # the request may have arrived
    LATE = "no answer in time"  # as may this one
    OURS = "too many requests of our own"  # the address is not to blame


@dataclass(frozen=True, slots=True)
class Lost:
    """There is no answer."""

    how: How
    detail: str

    @property
    def sent(self) -> bool:
        return self.how in (How.CUT, How.LATE)


class Event(NamedTuple):
    exchange: Exchange
    outcome: Answer | Lost


class Step(NamedTuple):
    start: Sequence[Exchange]
    until: float  # on the core's clock


Operation = Generator[Step, Event | None, T]


def alone(exchange: Exchange) -> Operation[Answer | Lost]:
    """What comes of one exchange."""
    event = yield Step((exchange,), exchange.deadline)
    while event is not None and event.exchange is not exchange:
        event = yield Step((), exchange.deadline)
    return Lost(How.LATE, How.LATE.value) if event is None else event.outcome


def together(operations: Sequence[Operation[T]]) -> Operation[list[T]]:
    """Several operations at once; their results in order. The first failure ends them all."""
    results: dict[int, T] = {}
    waits: dict[int, float] = {}
    asked_by: dict[Exchange, int] = {}
    starting: list[Exchange] = []

    def advance(index: int, event: Event | None) -> None:
        try:
            step = operations[index].send(event)
        except StopIteration as end:
            results[index] = end.value
            waits.pop(index, None)
            return
        waits[index] = step.until
        starting.extend(step.start)
        asked_by.update((exchange, index) for exchange in step.start)

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
            elif (asking := asked_by.pop(event.exchange, -1)) in waits:  # else nobody waits for it any more
                advance(asking, event)
    finally:
        for operation in operations:
            operation.close()
    return [results[index] for index in range(len(operations))]
