"""What the client thinks of each address: does it help to ask it, and how long does it usually take?

Strategy: the nodes' own `PeerHealth`. A client hears no heartbeats, so time stands in for them: an address that is away or
never in time rests, each time longer, and is tried again by a request that has others to turn to. So a node that cannot
be reached from here, as those of a cluster behind one service address, costs a failed connection now and then and no more.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from queryable_app.policy.failure_detector import PeerHealth

_BACKOFF_SECONDS_MIN: Final = 1.0
_BACKOFF_SECONDS_MAX: Final = 30.0


class _AddressState:
    __slots__ = ("backoff_seconds", "backs_off_until", "health")

    def __init__(self) -> None:
        self.health = PeerHealth()
        self.backs_off_until: float | None = None
        self.backoff_seconds = _BACKOFF_SECONDS_MIN


class AddressHealth:
    def __init__(self) -> None:
        self._known: dict[str, _AddressState] = {}

    def keep(self, addresses: Iterable[str]) -> None:
        """Forget all others."""
        wanted = set(addresses)
        self._known = {address: known for address, known in self._known.items() if address in wanted}

    def health(self, address: str, now: float) -> PeerHealth:
        known = self._known.setdefault(address, _AddressState())
        if known.backs_off_until is not None and now >= known.backs_off_until:
            known.backs_off_until = None
            known.health.heartbeat_answered(now)  # nobody heard one, but it has rested
        return known.health

    def answered(self, address: str, now: float, seconds: float | None) -> None:
        """`seconds` it took; None when that says nothing of the next one."""
        known = self._known.setdefault(address, _AddressState())
        known.health.heartbeat_answered(now)
        known.health.answered(seconds)
        known.backs_off_until = None
        known.backoff_seconds = _BACKOFF_SECONDS_MIN

    def gone(self, address: str, now: float) -> None:
        """A connection was refused, lost, or never made."""
        self.health(address, now).gone()
        self._back_off(address, now)

    def late(self, address: str, now: float) -> None:
        """It did not answer when it usually has, and another one had to."""
        health = self.health(address, now)
        health.failed(now)
        if health.breaker.is_open:
            self._back_off(address, now)

    def _back_off(self, address: str, now: float) -> None:
        known = self._known[address]
        if known.backs_off_until is None:
            known.backs_off_until = now + known.backoff_seconds
            known.backoff_seconds = min(_BACKOFF_SECONDS_MAX, 2 * known.backoff_seconds)
