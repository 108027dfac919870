"""How far a session has seen the log: what its next read must have reached."""

from __future__ import annotations

from collections.abc import Mapping


class Positions:
    """Partition → next offset; only ever grows. Other partitions have no floor."""

    def __init__(self, seen: Mapping[int, int]) -> None:
        self._seen = dict(seen)

    @property
    def seen(self) -> dict[int, int]:
        return dict(self._seen)

    def note(self, positions: Mapping[int, int]) -> None:
        """What an answer held, or a write made."""
        for partition, offset in positions.items():
            if offset > self._seen.get(partition, 0):
                self._seen[partition] = offset
