"""Which connections stay open when a client opens more than a node has room for.

Strategy: closing a connection that waits for its client costs the client nothing but a new connection; refusing a new one costs
it an answer. So at the bound the connection that has waited longest for its client, idle or in the middle of a request's
head, makes room. When none has waited for long, the newcomer is *over the bound*: its first request is
answered if it is a probe or another node's, and gets 429 otherwise. `CONNECTIONS_RESERVE` connections may be over the
bound; one more ends the one of them that has waited longest.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Generic, Protocol, TypeVar

from queryable_app.contract import NODE_HEADER
from queryable_app.errors import Failure, Reason
from queryable_app.policy.descriptor_plan import CONNECTIONS_RESERVE
from queryable_app.serve.api.guard import PROBES
from queryable_app.serve.peers.peers import FORWARDED_HEADER, Peers

_WAITED_SWEEPS: Final = 2  # at least a second, or a client might be sending its next request
_NODE_HEADERS: Final = (NODE_HEADER.encode(), FORWARDED_HEADER.encode())


class Connection(Protocol):
    """What admission has to know of a connection. Times are sweeps."""

    over_connection_limit: bool
    refused_since: int | None

    @property
    def waiting_since(self) -> int | None:
        """When it began to wait for its client; None while it has work to do."""

    def end(self) -> None:
        """Close it at once, and forget it."""


C = TypeVar("C", bound=Connection)


class ConnectionAdmission(Generic[C]):
    """The open connections of one node, oldest first."""

    def __init__(self) -> None:
        self.open: dict[C, None] = {}
        self._looked_at = -1
        self._waiting: list[tuple[int, C]] = []  # as of that sweep; the longest is the last

    def admit(self, newcomer: C, bound: int, now: int) -> None:
        """Make room for a newcomer, or mark it as over the bound. It may be ended itself."""
        while len(self.open) >= bound:
            waited = self._longest_waiting(now)
            if waited is None:
                newcomer.over_connection_limit = True
                break
            waited.end()
        self.open[newcomer] = None
        if len(self.open) > bound + CONNECTIONS_RESERVE:
            self._connection_to_sacrifice(newcomer).end()

    def _longest_waiting(self, now: int) -> C | None:
        """Look over all connections once a sweep: there is nothing new to find before the next one."""
        if self._looked_at != now:
            self._looked_at = now
            all_since = ((connection.waiting_since, connection) for connection in self.open)
            waiting = [
                (since, c) for since, c in all_since if since is not None and since <= now - _WAITED_SWEEPS
            ]
            self._waiting = sorted(waiting, key=lambda entry: entry[0])[::-1]
        while self._waiting:
            since, connection = self._waiting.pop()
            if connection in self.open and connection.waiting_since == since:
                return connection
        return None

    def _connection_to_sacrifice(self, newcomer: C) -> C:
        """Return a connection over the bound that is refused, or the one that has waited longest for its first request."""
        waiting = None
        for connection in self.open:
            if connection.refused_since is not None:
                return connection
            if waiting is None and connection.over_connection_limit and connection.waiting_since is not None:
                waiting = connection
        return waiting or newcomer


def bypasses_connection_limit(path: bytes, headers: Iterable[tuple[bytes, bytes]], peers: Peers) -> bool:
    """Return whether a request is answered although its connection is over the bound."""
    if path in PROBES:
        return True
    return any(
        name in _NODE_HEADERS and peers.accepts_token(value.decode("latin-1")) for name, value in headers
    )


def over_connection_limit(bound: int) -> Failure:
    return Failure(
        Reason.OVERLOADED,
        f"the node has {bound} busy connections open already",
        "come back later, and keep connections open rather than making new ones",
        retry_after_ms=1000,
    )
