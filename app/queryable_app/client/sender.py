"""Send one request to one address after another, until a node answers it or the deadline passes.

Strategy: rounds. A round tries each address at most once. `Attempts`, which nodes use as well, decides the order, the times
and the hedges. If all addresses refuse and waiting can help, the client waits as long as they said and starts another round,
with the placement that it has learned meanwhile. A write is never hedged, and never repeated once it may have arrived.
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
    NotAvailable,
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
_NETWORK_SECONDS_MAX: Final = 0.05
_REFUSED: Final = 503  # for `Attempts`: retry on the next address

Targets = Callable[[], Operation[Sequence[str]]]
"""Return the addresses of a round, in the order to try them."""
MakeRequest = Callable[[int], Request]
"""Return the request for the milliseconds that are left."""
Check = Callable[[Response], QueryableTopicError | None]
"""Return why the client cannot take a response, or None."""


class Sender:
    """Send requests with retries. `observe` receives every response of a node. Without `retries` there is one round."""

    def __init__(
        self,
        clock: Callable[[], float],
        random: Random,
        observe: Callable[[Response], None],
        retries: bool = True,
    ) -> None:
        self.addresses = AddressHealth()
        self._clock = clock
        self._random = random
        self._observe = observe
        self._retries = retries
        self._budget = HedgeBudget()

    def read(
        self,
        make: MakeRequest,
        targets: Targets,
        deadline: float,
        check: Check = lambda _: None,
        patience: float = 0.0,
    ) -> Operation[Response]:
        """Return the first good response: a success, or `key_not_found`. Otherwise raise the most specific refusal.

        `patience` are seconds before which no hedge is sent; with it, response times do not count for later hedges."""
        pause = _PAUSE_SECONDS_MIN
        error: QueryableTopicError | None = None
        while True:
            addresses = yield from targets()
            outcome = yield from self._round(make, addresses, deadline, check, patience)
            if isinstance(outcome, Response):
                return outcome
            for refusal in outcome:
                error = more_specific(error, refusal)
            wait = self._retry_delay(outcome, pause * self._random.uniform(0.5, 1.0))
            if wait is None or self._clock() + wait >= deadline:
                raise error or _deadline_exceeded()
            pause = min(_PAUSE_SECONDS_MAX, 2 * pause)
            yield from self.sleep(wait)

    def write(self, make: MakeRequest, targets: Targets, deadline: float) -> Operation[Response]:
        """Try one address after another, as long as it is certain that nothing was written.

        A request with an idempotency key is repeated in any case: the nodes recognize it."""
        unknown: OutcomeUnknown | None = None
        while True:
            refusal: QueryableTopicError = Unreachable("there is no address to send the write to")
            for address in self.best_first((yield from targets())):
                now = self._clock()
                if now >= deadline:
                    raise unknown or refusal
                request = make(_node_deadline_ms(deadline - now))
                attempt = Attempt(address, request, now, deadline)
                outcome = yield from send_one(attempt)
                failure = self._write_failure(attempt, outcome)
                if failure is None:
                    assert isinstance(outcome, Response)
                    return outcome
                refusal = failure
                if isinstance(refusal, OutcomeUnknown):
                    unknown = refusal
                if not _may_write_again(request, refusal):
                    raise unknown or refusal
            wait = self._retry_delay([refusal], _PAUSE_SECONDS_MAX)
            if wait is None or self._clock() + wait >= deadline:
                raise unknown or refusal
            yield from self.sleep(wait)

    def _write_failure(
        self, attempt: Attempt, outcome: Response | TransportFailure
    ) -> QueryableTopicError | None:
        """Return why a write has no good response: OutcomeUnknown if it may have been written."""
        if isinstance(outcome, TransportFailure):
            self._record_failure(attempt, outcome)
            error: QueryableTopicError | None = _unreachable(attempt.address, outcome)
            may_be_written = outcome.may_have_arrived
        else:
            self.addresses.answered(attempt.address, self._clock(), None)
            error = self._error_in(outcome, attempt.address)
            # A proxy answered, or Kafka was late.
            may_be_written = isinstance(error, Unreachable | DeadlineExceeded)
        return _outcome_unknown(error) if error is not None and may_be_written else error

    def sleep(self, seconds: float) -> Operation[None]:
        until = self._clock() + seconds
        while self._clock() < until:
            yield Step((), until)

    def best_first(self, addresses: Sequence[str]) -> Sequence[str]:
        """Return the addresses with those last that are unreachable or always late."""
        now = self._clock()
        return sorted(addresses, key=lambda address: not self.addresses.health(address, now).allows(now))

    def _round(
        self, make: MakeRequest, addresses: Sequence[str], deadline: float, check: Check, patience: float
    ) -> Operation[Response | list[QueryableTopicError]]:
        """Return a response, or why each address gave none. Raise an error that every other address would repeat."""
        now = self._clock()
        health = {number: self.addresses.health(address, now) for number, address in enumerate(addresses)}
        attempts = Attempts(range(len(addresses)), deadline, health, self._budget, patience)
        running: dict[Attempt, int] = {}
        refusals: list[QueryableTopicError] = []
        starting: list[Attempt] = []
        while True:
            now = self._clock()
            decision = attempts.step(now)
            if isinstance(decision, SendTo):
                request = make(_node_deadline_ms(deadline - now))
                attempt = Attempt(addresses[decision.ordinal], request, now, deadline)
                health[decision.ordinal].asked(now)
                running[attempt] = decision.ordinal
                starting.append(attempt)
                continue
            if isinstance(decision, Exhausted):
                self._record_late(running, always=True)
                return [*refusals, _deadline_exceeded()] if running else refusals
            event = yield Step(tuple(starting), decision.until)
            starting.clear()
            if event is None or event.attempt not in running:
                continue
            attempt, outcome = event
            number = running.pop(attempt)
            if isinstance(outcome, TransportFailure):
                self._record_failure(attempt, outcome)
                attempts.failed(number)
                if outcome.kind is not FailureKind.TIMEOUT:
                    refusals.append(_unreachable(attempt.address, outcome))
                continue
            seconds = self._clock() - attempt.started
            self.addresses.answered(attempt.address, self._clock(), None if patience else seconds)
            error = self._error_in(outcome, attempt.address) or check(outcome)
            if error is None:
                self._record_late(running)
                return outcome
            if not error.others_may_answer:
                raise error
            refusals.append(error)
            if attempts.answered(number, outcome.status if outcome.status == 429 else _REFUSED, error):
                return refusals

    def _error_in(self, response: Response, address: str) -> QueryableTopicError | None:
        if response.status in (200, 404) and "qt-application" not in response.headers:
            return malformed(address)  # another server listens there
        self._observe(response)
        if response.status == 200:
            return None
        if response.status == 404 and reason_of(response.body) is Reason.KEY_NOT_FOUND:
            return None
        return from_problem(response.status, response.body, address)

    def _record_failure(self, attempt: Attempt, failure: TransportFailure) -> None:
        if failure.kind is FailureKind.TIMEOUT:
            self.addresses.late(attempt.address, self._clock())
        elif failure.kind is not FailureKind.POOL_EXHAUSTED:
            self.addresses.unreachable(attempt.address, self._clock())

    def _record_late(self, running: dict[Attempt, int], always: bool = False) -> None:
        """Record the attempts that a hedge or the deadline has overtaken."""
        now = self._clock()
        for attempt in running:
            hedge_after = self.addresses.health(attempt.address, now).hedge_after
            if always or now - attempt.started >= hedge_after:
                self.addresses.late(attempt.address, now)

    def _retry_delay(self, refusals: Sequence[QueryableTopicError], pause: float) -> float | None:
        """Return the seconds until the next round, or None if waiting does not help. An overloaded node sets the time."""
        if not self._retries:
            return None
        delays = {refusal: _retry_delay_of(refusal, pause) for refusal in refusals}
        overloaded = [d for refusal, d in delays.items() if isinstance(refusal, Overloaded) and d]
        if overloaded:
            return max(overloaded)
        return min((delay for delay in delays.values() if delay is not None), default=None)


def _retry_delay_of(refusal: QueryableTopicError, pause: float) -> float | None:
    if refusal.retry_after_ms is not None:
        return max(pause, refusal.retry_after_ms / 1000)
    return pause if isinstance(refusal, Unreachable | WrongOwner | Overloaded | OutcomeUnknown) else None


def _may_write_again(request: Request, refusal: QueryableTopicError) -> bool:
    """Return whether another attempt writes nothing twice, and may succeed."""
    if isinstance(refusal, OutcomeUnknown) or type(refusal) is NotAvailable:
        return request.idempotency_key is not None
    return isinstance(refusal, Overloaded | Unreachable)


def _deadline_exceeded() -> DeadlineExceeded:
    return DeadlineExceeded(
        "no node answered in time", "raise deadline_ms, or look at /v1/status of the nodes"
    )


def _outcome_unknown(why: QueryableTopicError) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"the write was sent, and its outcome is unknown: {why.detail}",
        "read the key, or write again if a second write does no harm",
        partition=why.partition,
        address=why.address,
    )


def _unreachable(address: str, failure: TransportFailure) -> Unreachable:
    return Unreachable(
        f"{address} does not answer: {failure.detail}", "check that the nodes run", address=address
    )


def _node_deadline_ms(seconds: float) -> int:
    """Return the deadline that a node gets: a little less than is left, so that its last response still arrives."""
    return max(1, int((seconds - min(_NETWORK_SECONDS_MAX, seconds / 10)) * 1000))
