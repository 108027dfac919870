"""Parse and encode the moment that a read names: a time, or a position in each partition.

Strategy: a position names the state after all records below its offset. A time names the state after the last record at which the
partition's clock is not later: the clock of an offset is the greatest record timestamp of the partition up to it. So both are the
same for every replica, and name a prefix of the log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from queryable_app.errors import Failure, invalid, shown
from queryable_app.wire.checked import OFFSET_MAX, by_partition, whole
from queryable_app.wire.checked import field as checked_field
from queryable_app.wire.http_text import parse_position
from queryable_app.wire.times import parse_time, to_iso

_TIME_MAX: Final = 1 << 63


@dataclass(frozen=True, slots=True)
class AsOf:
    """Name a moment: either a time, or positions."""

    time_ms: int | None = None
    positions: Mapping[int, int] = field(default_factory=dict)
    """Partition → the offset that its first excluded record has."""

    @property
    def text(self) -> str:
        """Return the moment as requests write it."""
        if self.time_ms is not None:
            return to_iso(self.time_ms)
        return ",".join([f"{partition}:{offset}" for partition, offset in sorted(self.positions.items())])

    def is_before(self, other: AsOf) -> bool:
        """Return whether this moment is earlier in every partition that both name. A time and a position have no order."""
        if self.time_ms is not None and other.time_ms is not None:
            return self.time_ms < other.time_ms
        shared = self.positions.keys() & other.positions.keys()
        return bool(shared) and all(self.positions[each] < other.positions[each] for each in shared)

    def to_json(self) -> dict[str, Any]:
        if self.time_ms is not None:
            return {"timeMs": self.time_ms}
        return {"positions": {str(partition): offset for partition, offset in self.positions.items()}}


def as_of_from_json(raw: Any) -> AsOf:
    """Raises Malformed."""
    if isinstance(raw, dict) and "timeMs" in raw:
        return AsOf(checked_field(raw, "timeMs", whole(-_TIME_MAX, _TIME_MAX - 1)))
    return AsOf(None, checked_field(raw, "positions", by_partition(whole(0, OFFSET_MAX))))


def parse_as_of(name: str, texts: Sequence[str], partitions: int, now_ms: int) -> AsOf | None:
    """Return the moment in a parameter that may be repeated, None if it is not given. Raises Failure that names it."""
    if not texts:
        return None
    pieces = [piece.strip() for text in texts for piece in text.split(",")]
    time_ms = parse_time(pieces[0]) if len(pieces) == 1 else None
    if time_ms is not None:
        if time_ms > now_ms:
            raise invalid(
                name, f"{to_iso(time_ms)} is in the future", "name a time that has passed, or a position"
            )
        return AsOf(time_ms)
    positions: dict[int, int] = {}
    for piece in pieces:
        position = parse_position(piece)
        if position is None or position[0] >= partitions or position[1] > OFFSET_MAX:
            raise _no_moment(name, piece, partitions)
        partition, offset = position
        if positions.setdefault(partition, offset) != offset:
            raise invalid(name, f"names two positions of partition {partition}", "name one of each")
    return AsOf(None, positions)


def _no_moment(name: str, text: str, partitions: int) -> Failure:
    return invalid(
        name,
        f"{shown(text)} is neither a time nor a position of this topic",
        "write a time like 2026-11-22T10:00:00Z, milliseconds since 1970, or <partition>:<offset> with a partition "
        f"from 0 to {partitions - 1} and an offset from 0 to {OFFSET_MAX}",
    )
