"""Count what a node answers, in plain numbers: a count costs the fast lane one addition."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Counters:
    keys_found: int = 0
    keys_absent: int = 0
    answers: Counter[tuple[str, int]] = field(default_factory=Counter)
    """By route and status, without the fast lane's answers."""
    fast_answers: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    """By reason."""
    in_flight: int = 0
    connections: int = 0
    connections_closed_for_others: int = 0
    change_clients: int = 0
    """Clients that follow the change feed now."""
    changes_sent: int = 0
    changes_compacted: int = 0
    """How often a client got the rows of a partition, in place of changes that the log no longer has."""
    handshakes: int = 0
    handshakes_failed: int = 0
    """TLS connections that ended, or sent plain HTTP, before they were open to requests."""
