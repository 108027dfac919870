"""Bound the memory that request bodies take, and decide it before a body is read.

Strategy: a body with a `Content-Length` reserves its length at the head, or the request is refused there. A chunked body
reserves what has arrived. The reservation lasts until the request's task ends: the keys or records that a route makes of a
body are about as large as the body, and live as long. Parsing takes more for a moment: 3 to 5 times an ASCII body, 16 times
one with a character beyond U+FFFF. The budget does not count that, because only one large body is parsed at a time and nothing of
it remains: at most 32 MiB for a body of 2 MiB, which the container's limit has to spare. A body of up to `SMALL_BODY_BYTES`
reserves nothing: the limit on connections bounds small bodies, and large bodies do not keep them out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from starlette.types import Receive, Scope, Send

from queryable_app.errors import Failure, Reason
from queryable_app.serve.api.request import SMALL_BODY_BYTES
from queryable_app.serve.base.byte_budget import ByteBudget


class BodyReservation:
    """Count the bytes that one request's body takes of the budget."""

    __slots__ = ("_begun", "_budget", "_bytes_max", "_expected", "_received", "_taken")

    def __init__(self, budget: ByteBudget, bytes_max: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self._budget = budget
        self._bytes_max = bytes_max
        self._expected: int | None = 0  # None: the body is chunked
        self._received = self._taken = 0
        self._begun = False
        for name, value in headers:
            if name == b"content-length":
                self._expected = int(value.lstrip(b"0")[:19] or b"0")
            elif name == b"transfer-encoding":
                self._expected = None

    def receive(self, size: int) -> Failure | None:
        """Reserve what the body is known to need. Return why the request is refused, or None."""
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

    def wrap(self, app: Any) -> Any:
        """Return an app that runs the given one and then releases the reservation."""

        async def with_body(scope: Scope, receive: Receive, send: Send) -> Any:
            self._begun = True
            try:
                return await app(scope, receive, send)
            finally:
                self._release()

        return app if self._expected is not None and self._expected <= SMALL_BODY_BYTES else with_body

    def end(self) -> None:
        """Release the reservation, unless the request's task has begun and releases it itself."""
        if not self._begun:
            self._release()

    def _release(self) -> None:
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
            f"the bodies of the requests in flight take up to {self._budget.bytes_max} bytes",
            "retry later, with smaller bodies or fewer at once",
            retry_after_ms=1000,
        )
