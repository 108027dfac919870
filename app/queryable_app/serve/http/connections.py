"""Decide which connections stay open when clients open more than a node's limit.

Strategy: a client whose idle connection is closed loses nothing but that connection; a client whose new connection is
refused loses an answer. So at the limit the node closes the connection that has waited longest for its client, idle or in
the middle of a request's head. If none has waited for long, the new connection is *over the limit*: its first request is
answered if it is a probe or comes from another node, and gets 429 otherwise. `CONNECTIONS_RESERVE` connections may be over
the limit; one more closes the one of them that has waited longest.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Generic, Protocol, TypeVar

from queryable_app.contract import NODE_HEADER
from queryable_app.errors import Failure, Reason
from queryable_app.policy.descriptor_plan import CONNECTIONS_RESERVE
from queryable_app.serve.api.guard import PROBES
from queryable_app.serve.peers.peers import FORWARDED_HEADER, Peers

_WAITED_SWEEPS: Final = 2  # at least a second; within less the client may be sending its next request
_NODE_HEADERS: Final = (NODE_HEADER.encode(), FORWARDED_HEADER.encode())


class Connection(Protocol):
    """Describe a connection to `ConnectionAdmission`. Times are counted in sweeps."""

    over_connection_limit: bool
    refused_since: int | None

    @property
    def waiting_since(self) -> int | None:
        """Return when the connection began to wait for its client; None while a request is being answered."""

    def close_for_another(self) -> None:
        """Close at once, and leave the set of open connections."""


C = TypeVar("C", bound=Connection)


class ConnectionAdmission(Generic[C]):
    """Keep the open connections of one node, oldest first."""

    def __init__(self) -> None:
        self.open: dict[C, None] = {}
        self._sorted_at = -1  # sweep
        self._waiting: list[tuple[int, C]] = []  # as of `_sorted_at`, longest waiting last

    def admit(self, newcomer: C, limit: int, now: int) -> None:
        """Add a connection: make room for it, or mark it as over the limit, or close it."""
        while len(self.open) >= limit:
            waited = self._longest_waiting(now)
            if waited is None:
                newcomer.over_connection_limit = True
                break
            waited.close_for_another()
        self.open[newcomer] = None
        if len(self.open) > limit + CONNECTIONS_RESERVE:
            self._connection_to_sacrifice(newcomer).close_for_another()

    def _longest_waiting(self, now: int) -> C | None:
        """Return the connection that has waited longest. Sort all of them at most once a sweep."""
        if self._sorted_at != now:
            self._sorted_at = now
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
        """Return a refused connection, or the one over the limit that has waited longest for its first request."""
        waiting = None
        for connection in self.open:
            if connection.refused_since is not None:
                return connection
            if waiting is None and connection.over_connection_limit and connection.waiting_since is not None:
                waiting = connection
        return waiting or newcomer


def bypasses_connection_limit(path: bytes, headers: Iterable[tuple[bytes, bytes]], peers: Peers) -> bool:
    """Return whether a request is answered although its connection is over the limit."""
    if path in PROBES:
        return True
    return any(
        name in _NODE_HEADERS and peers.accepts_token(value.decode("latin-1")) for name, value in headers
    )


def too_many_connections(limit: int) -> Failure:
    return Failure(
        Reason.OVERLOADED,
        f"the node already has {limit} busy connections",
        "retry later, and keep connections open instead of opening new ones",
        retry_after_ms=1000,
    )


def certificate_required() -> Failure:
    return Failure(
        Reason.UNAUTHENTICATED,
        "the view takes requests only of clients with a certificate, and this connection has none",
        "connect with a certificate and key that a CA in ca.crt of the view's Secret has signed",
    )
