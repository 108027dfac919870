"""Keep the positions that a session has seen, which its next read must have reached."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from queryable_app.client.attempts import Response
from queryable_app.client.exceptions import NotFreshEnough
from queryable_app.client.rows import positions_of

_PROPAGATION_SECONDS: Final = 1.0  # ten heartbeats: by then every node knows how producers place keys

_NOT_FOUND: Final = re.compile(rb'"found": ?false')


class SessionPositions:
    """Keep the next offset of each partition that the session has seen. Offsets only grow; other partitions have no floor.

    A position of a write, or one that the session began with, may belong to a record with a partitioner mismatch. Until a
    read has required it, and nodes have had time to exchange it, a response that a key does not exist is not trusted.
    """

    def __init__(self, seen: Mapping[int, int]) -> None:
        self._seen = dict(seen)
        self._unconfirmed: dict[int, tuple[int, float | None]] = {p: (o, None) for p, o in seen.items()}

    @property
    def seen(self) -> dict[int, int]:
        return dict(self._seen)

    def note(self, positions: Mapping[int, int]) -> None:
        """Raise the floors to the positions of a response."""
        for partition, offset in positions.items():
            if offset > self._seen.get(partition, 0):
                self._seen[partition] = offset

    def note_written(self, positions: Mapping[int, int]) -> None:
        """Raise the floors to the positions of a write, which no read has confirmed yet."""
        self.note(positions)
        for partition, offset in positions.items():
            self._unconfirmed[partition] = max(offset, self._unconfirmed.get(partition, (0, None))[0]), None

    def unconfirmed(self, now: float) -> dict[int, int]:
        """Return the positions that a read must require before the session trusts that a key does not exist."""
        for partition, (_, confirmed_at) in list(self._unconfirmed.items()):
            if confirmed_at is not None and now - confirmed_at > _PROPAGATION_SECONDS:
                self._unconfirmed.pop(partition, None)
        return {partition: offset for partition, (offset, _) in list(self._unconfirmed.items())}

    def confirm(self, positions: Mapping[int, int], now: float) -> None:
        """Record that a read which required these positions was answered."""
        for partition, offset in positions.items():
            unconfirmed, confirmed_at = self._unconfirmed.get(partition, (0, now))
            if confirmed_at is None and offset >= unconfirmed:
                self._unconfirmed[partition] = unconfirmed, now


def behind_session(floors: Mapping[int, int], response: Response) -> NotFreshEnough | None:
    """Return why a session cannot take this response, or None."""
    positions = positions_of(response)
    short = [p for p, floor in floors.items() if positions.get(p, floor) < floor]
    if not short:
        return None
    p = short[0]
    return NotFreshEnough(
        f"the replica of partition {p} is at {positions[p]}, and the session has seen {floors[p]}",
        "raise deadline_ms",
        partition=p,
        position=f"{p}:{positions[p]}",
        retry_after_ms=50,
    )


def reports_missing_key(response: Response) -> bool:
    """Return whether a key in the response does not exist. A value with the same text only costs another request."""
    return response.status == 404 or _NOT_FOUND.search(response.body) is not None
