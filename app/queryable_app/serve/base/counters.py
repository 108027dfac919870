"""What a node has answered, in plain numbers, so that counting costs the fast lane an addition."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Counters:
    keys_found: int = 0
    keys_absent: int = 0
    answers: Counter[tuple[str, int]] = field(default_factory=Counter)
    """By route and status; without the answers of the fast lane."""
    fast_answers: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    """By reason."""
    in_flight: int = 0
    connections: int = 0
    connections_closed_for_others: int = 0
