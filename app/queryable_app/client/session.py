"""How far a session has seen the log: what its next read must have reached."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_KNOWN_SECONDS: Final = 1.0  # ten heartbeats: by then every node has heard where producers place keys


class SessionPositions:
    """Partition → next offset; only ever grows. Other partitions have no floor.

    A position from outside, of a write or as the session began, may be of a record that contradicts the partitioner that
    nodes assume. Until it was named in a read that was answered, and nodes had the time to tell one another, a key that is
    not found is no proof."""

    def __init__(self, seen: Mapping[int, int]) -> None:
        self._seen = dict(seen)
        self._unproven: dict[int, tuple[int, float | None]] = {p: (o, None) for p, o in seen.items()}

    @property
    def seen(self) -> dict[int, int]:
        return dict(self._seen)

    def note(self, positions: Mapping[int, int]) -> None:
        """What an answer held."""
        for partition, offset in positions.items():
            if offset > self._seen.get(partition, 0):
                self._seen[partition] = offset

    def note_written(self, positions: Mapping[int, int]) -> None:
        """What a write made."""
        self.note(positions)
        for partition, offset in positions.items():
            self._unproven[partition] = max(offset, self._unproven.get(partition, (0, None))[0]), None

    def unconfirmed(self, now: float) -> dict[int, int]:
        """The positions to name before it is believed that a key is not there. `now` is monotonic."""
        for partition, (_, answered_at) in list(self._unproven.items()):
            if answered_at is not None and now - answered_at > _KNOWN_SECONDS:
                self._unproven.pop(partition, None)
        return {partition: offset for partition, (offset, _) in list(self._unproven.items())}

    def confirm(self, positions: Mapping[int, int], now: float) -> None:
        """A read that named these positions was answered."""
        for partition, offset in positions.items():
            unconfirmed, answered_at = self._unproven.get(partition, (0, now))
            if answered_at is None and offset >= unconfirmed:
                self._unproven[partition] = unconfirmed, now
