"""What the client thinks of each address: does it help to ask it, and how long does it usually take?

Strategy: the nodes' own `PeerHealth`. A client hears no heartbeats, so time stands in for them: an address that is away or
never in time rests, each time longer, and is tried again by a request that has others to turn to. So a node that cannot
be reached from here, as those of a cluster behind one service address, costs a failed connection now and then and no more.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from queryable_app.policy.failure_detector import PeerHealth

_REST_SECONDS_MIN: Final = 1.0
_REST_SECONDS_MAX: Final = 30.0


class _Acquaintance:
    __slots__ = ("health", "rest_seconds", "rests_until")

    def __init__(self) -> None:
        self.health = PeerHealth()
        self.rests_until: float | None = None
        self.rest_seconds = _REST_SECONDS_MIN


class Addresses:
    def __init__(self) -> None:
        self._known: dict[str, _Acquaintance] = {}

    def keep(self, addresses: Iterable[str]) -> None:
        """Forget all others."""
        wanted = set(addresses)
        self._known = {address: known for address, known in self._known.items() if address in wanted}

    def health(self, address: str, now: float) -> PeerHealth:
        known = self._known.setdefault(address, _Acquaintance())
        if known.rests_until is not None and now >= known.rests_until:
            known.rests_until = None
            known.health.heartbeat_answered(now)  # nobody heard one, but it has rested
        return known.health

    def answered(self, address: str, now: float, seconds: float | None) -> None:
        """`seconds` it took; None when that says nothing of the next one."""
        known = self._known.setdefault(address, _Acquaintance())
        known.health.heartbeat_answered(now)
        known.health.answered(seconds)
        known.rests_until = None
        known.rest_seconds = _REST_SECONDS_MIN

    def gone(self, address: str, now: float) -> None:
        """A connection was refused, lost, or never made."""
        self.health(address, now).gone()
        self._rest(address, now)

    def late(self, address: str, now: float) -> None:
        """It did not answer when it usually has, and another one had to."""
        health = self.health(address, now)
        health.failed(now)
        if health.breaker.is_open:
            self._rest(address, now)

    def _rest(self, address: str, now: float) -> None:
        known = self._known[address]
        if known.rests_until is None:
            known.rests_until = now + known.rest_seconds
            known.rest_seconds = min(_REST_SECONDS_MAX, 2 * known.rest_seconds)
