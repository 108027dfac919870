"""One request, asked until somebody answers it or the deadline is there.

Strategy: rounds. In a round each address is asked at most once; `Attempts`, which nodes use among themselves, decides whom
and when, hedges included. When all have refused and time would help, the client waits, as long as they said, and begins
another round with what it has learnt of the placement meanwhile. Writes are never hedged, and never repeated once they
may have arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from queryable_app.client.address_health import AddressHealth
from queryable_app.client.attempts import (
    Attempt,
    FailureKind,
    Operation,
    Request,
    Response,
    Step,
    TransportFailure,
    send_one,
)
from queryable_app.client.exceptions import (
    DeadlineExceeded,
    OutcomeUnknown,
    Overloaded,
    QueryableTopicError,
    Unreachable,
    WrongOwner,
    from_problem,
    more_specific,
    reason_of,
)
from queryable_app.client.rows import malformed
from queryable_app.errors import Reason
from queryable_app.policy.attempts import Attempts, Exhausted, HedgeBudget, SendTo

_PAUSE_SECONDS_MIN: Final = 0.02
_PAUSE_SECONDS_MAX: Final = 0.5
_UNDER_WAY_SECONDS_MAX: Final = 0.05
_REFUSED: Final = 503  # for `Attempts`: another one may answer

Targets = Callable[[], Operation[Sequence[str]]]
"""Whom to ask in this round, in order."""
MakeRequest = Callable[[int], Request]
"""For so many ms that are left."""
Judge = Callable[[Response], QueryableTopicError | None]
"""What is wrong with an answer; None: nothing."""


class Sender:
    """`notice` is shown every answer of a node."""

    def __init__(
        self, clock: Callable[[], float], random: Random, notice: Callable[[Response], None]
    ) -> None:
        self.addresses = AddressHealth()
        self._clock = clock
        self._random = random
        self._notice = notice
        self._budget = HedgeBudget()

    def ask(
        self,
        make: MakeRequest,
        targets: Targets,
        deadline: float,
        judge: Judge = lambda _: None,
        patience: float = 0.0,
    ) -> Operation[Response]:
        """The first good answer: a success, or `key_not_found`. Raises what the refusals amount to. With `patience`, the
        seconds before which no hedge makes sense, the time that the answer takes says nothing of others."""
        pause = _PAUSE_SECONDS_MIN
        telling: QueryableTopicError | None = None
        while True:
            order = yield from targets()
            outcome = yield from self._round(make, order, deadline, judge, patience)
            if isinstance(outcome, Response):
                return outcome
            for refusal in outcome:
                telling = more_specific(telling, refusal)
            wait = _worth_waiting(outcome, pause * self._random.uniform(0.5, 1.0))
            if wait is None or self._clock() + wait >= deadline:
                raise telling or _too_late()
            pause = min(_PAUSE_SECONDS_MAX, 2 * pause)
            yield from self.sleep(wait)

    def write(self, make: MakeRequest, targets: Targets, deadline: float) -> Operation[Response]:
        """One address after the other, on as long as it is certain that nothing was written."""
        while True:
            refusal: QueryableTopicError = Unreachable("there is no address to ask")
            for address in self.best_first((yield from targets())):
                now = self._clock()
                if now >= deadline:
                    raise refusal
                attempt = Attempt(address, make(_ms(deadline - now)), now, deadline)
                outcome = yield from send_one(attempt)
                if isinstance(outcome, TransportFailure):
                    self._lost(attempt, outcome)
                    refusal = _unreachable(address, outcome)
                    if outcome.sent:
                        raise _unknown(refusal)
                    continue
                self.addresses.answered(address, self._clock(), None)
                error = self._verdict(outcome, address)
                if error is None:
                    return outcome
                # Something in between answered, or Kafka was late.
                if isinstance(error, Unreachable | DeadlineExceeded):
                    raise _unknown(error)
                if not isinstance(error, Overloaded):
                    raise error
                refusal = error
            wait = _worth_waiting([refusal], _PAUSE_SECONDS_MAX)
            if wait is None or self._clock() + wait >= deadline:
                raise refusal
            yield from self.sleep(wait)

    def sleep(self, seconds: float) -> Operation[None]:
        until = self._clock() + seconds
        while self._clock() < until:
            yield Step((), until)

    def best_first(self, order: Sequence[str]) -> Sequence[str]:
        """Those that are away, or always late, last."""
        now = self._clock()
        return sorted(order, key=lambda address: not self.addresses.health(address, now).allows(now))

    def _round(
        self, make: MakeRequest, order: Sequence[str], deadline: float, judge: Judge, patience: float
    ) -> Operation[Response | list[QueryableTopicError]]:
        """An answer, or what everyone said instead. Raises what no other address would answer differently."""
        now = self._clock()
        health = {number: self.addresses.health(address, now) for number, address in enumerate(order)}
        attempts = Attempts(range(len(order)), deadline, health, self._budget, patience)
        running: dict[Attempt, int] = {}
        refusals: list[QueryableTopicError] = []
        starting: list[Attempt] = []
        while True:
            now = self._clock()
            do = attempts.step(now)
            if isinstance(do, SendTo):
                attempt = Attempt(order[do.ordinal], make(_ms(deadline - now)), now, deadline)
                health[do.ordinal].asked(now)
                running[attempt] = do.ordinal
                starting.append(attempt)
                continue
            if isinstance(do, Exhausted):
                self._overtaken(running, too_late=True)
                return [*refusals, _too_late()] if running else refusals
            event = yield Step(tuple(starting), do.until)
            starting.clear()
            if event is None or event.attempt not in running:
                continue
            attempt, outcome = event
            number = running.pop(attempt)
            if isinstance(outcome, TransportFailure):
                self._lost(attempt, outcome)
                attempts.failed(number)
                if outcome.how is not FailureKind.TIMEOUT:
                    refusals.append(_unreachable(attempt.address, outcome))
                continue
            took = self._clock() - attempt.started
            self.addresses.answered(attempt.address, self._clock(), None if patience else took)
            error = self._verdict(outcome, attempt.address) or judge(outcome)
            if error is None:
                self._overtaken(running, too_late=False)
                return outcome
            if not error.others_may_answer:
                raise error
            refusals.append(error)
            if attempts.answered(number, outcome.status if outcome.status == 429 else _REFUSED, error):
                return refusals

    def _verdict(self, answer: Response, address: str) -> QueryableTopicError | None:
        if answer.status in (200, 404) and "qt-application" not in answer.headers:
            return malformed(address)  # something else listens there
        self._notice(answer)
        if answer.status == 200 or (answer.status == 404 and reason_of(answer.body) is Reason.KEY_NOT_FOUND):
            return None
        return from_problem(answer.status, answer.body, address)

    def _lost(self, attempt: Attempt, lost: TransportFailure) -> None:
        if lost.how is FailureKind.TIMEOUT:
            self.addresses.late(attempt.address, self._clock())
        elif lost.how is not FailureKind.POOL_EXHAUSTED:
            self.addresses.gone(attempt.address, self._clock())

    def _overtaken(self, running: dict[Attempt, int], too_late: bool) -> None:
        """Others had to answer for these, or nobody did."""
        now = self._clock()
        for attempt in running:
            if too_late or now - attempt.started >= self.addresses.health(attempt.address, now).hedge_after:
                self.addresses.late(attempt.address, now)


def _worth_waiting(refusals: Sequence[QueryableTopicError], pause: float) -> float | None:
    """Seconds after which to ask again; None when time does not help. Whoever is overloaded is waited for longest."""
    waits = {refusal: _wait(refusal, pause) for refusal in refusals}
    overloaded = [wait for refusal, wait in waits.items() if isinstance(refusal, Overloaded) and wait]
    if overloaded:
        return max(overloaded)
    return min((wait for wait in waits.values() if wait is not None), default=None)


def _wait(refusal: QueryableTopicError, pause: float) -> float | None:
    if refusal.retry_after_ms is not None:
        return max(pause, refusal.retry_after_ms / 1000)
    return pause if isinstance(refusal, Unreachable | WrongOwner | Overloaded) else None


def _too_late() -> DeadlineExceeded:
    return DeadlineExceeded(
        "nobody answered in time", "ask for more time with deadline_ms, or see what the nodes are doing"
    )


def _unknown(why: QueryableTopicError) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"the write was sent, and whether it was done is not known: {why.detail}",
        "read the key, or write again where twice does no harm",
        partition=why.partition,
        address=why.address,
    )


def _unreachable(address: str, lost: TransportFailure) -> Unreachable:
    return Unreachable(
        f"{address} does not answer: {lost.detail}", "see whether the nodes run", address=address
    )


def _ms(seconds: float) -> int:
    """A little less than there is: what a node says at its deadline shall still arrive."""
    return max(1, int((seconds - min(_UNDER_WAY_SECONDS_MAX, seconds / 10)) * 1000))
