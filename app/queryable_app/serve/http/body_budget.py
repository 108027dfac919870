"""What the bodies of all requests may take of a node's memory, decided before a body is read.

Strategy: a request whose body says its length takes that much of the budget at its head, or is refused there; one whose
body comes in chunks takes what has come. Both keep it until the request's task has ended, since the body, and what was made of
it, live as long. A body that fits into what is read from a socket at once takes nothing: connections bound those, and large
bodies do not keep small ones out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from starlette.types import Receive, Scope, Send

from queryable_app.errors import Failure, Reason
from queryable_app.serve.base.byte_budget import ByteBudget

SMALL_BODY_BYTES: Final = 64 * 1024


class BodyReservation:
    """What one request has taken."""

    __slots__ = ("_begun", "_budget", "_bytes_max", "_expected", "_received", "_taken")

    def __init__(self, budget: ByteBudget, bytes_max: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self._budget = budget
        self._bytes_max = bytes_max
        self._expected: int | None = 0  # None: not known, it comes in chunks
        self._received = self._taken = 0
        self._begun = False
        for name, value in headers:
            if name == b"content-length":
                self._expected = int(value.lstrip(b"0")[:19] or b"0")
            elif name == b"transfer-encoding":
                self._expected = None

    def receive(self, size: int) -> Failure | None:
        """Take what the body needs, as far as it is known. Returns why the request is refused, or None."""
        if self._expected is None:
            self._received += size
            needed = self._received
        else:
            needed = self._expected
        if needed > self._bytes_max:
            return self._too_large()
        if needed > max(self._taken, SMALL_BODY_BYTES):
            if not self._budget.take(needed - self._taken):
                return self._too_many()
            self._taken = needed
        return None

    def around(self, app: Any) -> Any:
        """Return the app for this request: it gives back what was taken when it has ended."""

        async def with_body(scope: Scope, receive: Receive, send: Send) -> Any:
            self._begun = True
            try:
                return await app(scope, receive, send)
            finally:
                self._give_back()

        return app if self._expected is not None and self._expected <= SMALL_BODY_BYTES else with_body

    def end(self) -> None:
        """The request is refused, or its connection has ended. A task that has begun goes on for a moment."""
        if not self._begun:
            self._give_back()

    def _give_back(self) -> None:
        taken, self._taken = self._taken, 0
        self._budget.release(taken)

    def _too_large(self) -> Failure:
        return Failure(
            Reason.TOO_LARGE,
            f"the body is larger than {self._bytes_max} bytes",
            "split it over several requests",
        )

    def _too_many(self) -> Failure:
        return Failure(
            Reason.OVERLOADED,
            f"the bodies of the requests under way take up to {self._budget.bytes_max} bytes",
            "retry in a while, with smaller bodies or fewer at once",
            retry_after_ms=1000,
        )
