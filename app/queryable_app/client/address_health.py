"""Keep how well each address has answered, to choose the next one to try.

Strategy: the nodes' own `PeerHealth`. A client gets no heartbeats, so time takes their place: an address that is unreachable,
or always late, is tried last until a delay has passed. The delay doubles up to half a minute. So a node that this client
cannot connect to, as behind a single service address, costs a failed connection now and then and no more.
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
    """Keep the health of every address that the client has used. All moments are on the client's clock."""

    def __init__(self) -> None:
        self._states: dict[str, _AddressState] = {}

    def retain(self, addresses: Iterable[str]) -> None:
        """Drop the state of all other addresses."""
        retained = set(addresses)
        self._states = {address: state for address, state in self._states.items() if address in retained}

    def health(self, address: str, now: float) -> PeerHealth:
        """Return the health of an address. When its delay has passed, it counts as reachable again."""
        state = self._states.setdefault(address, _AddressState())
        if state.backs_off_until is not None and now >= state.backs_off_until:
            state.backs_off_until = None
            state.health.heartbeat_answered(now)  # the delay stands in for a heartbeat
        return state.health

    def answered(self, address: str, now: float, seconds: float | None) -> None:
        """Record a response that took `seconds`; None when that does not predict the next one."""
        state = self._states.setdefault(address, _AddressState())
        state.health.heartbeat_answered(now)
        state.health.answered(seconds)
        state.backs_off_until = None
        state.backoff_seconds = _BACKOFF_SECONDS_MIN

    def unreachable(self, address: str, now: float) -> None:
        """Record a connection that was refused, lost, or never made."""
        self.health(address, now).connection_lost()
        self._back_off(address, now)

    def late(self, address: str, now: float) -> None:
        """Record that an attempt took longer than usual, and another address had to answer."""
        health = self.health(address, now)
        health.failed(now)
        if health.breaker.is_open:
            self._back_off(address, now)

    def _back_off(self, address: str, now: float) -> None:
        state = self._states[address]
        if state.backs_off_until is None:
            state.backs_off_until = now + state.backoff_seconds
            state.backoff_seconds = min(_BACKOFF_SECONDS_MAX, 2 * state.backoff_seconds)
