"""Decide whether a replica is fresh enough for a read, and parse the read options of a request.

Strategy: `parse_read_options` turns parameters into a frozen value, or names the wrong one. `freshness_failure` checks one
replica at one moment and returns None or the failure. The caller waits for a replica to catch up, and checks it again. The table
of consistency levels is in docs/reads.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol

from queryable_app.errors import Failure, Reason, invalid, shown
from queryable_app.wire.as_of import AsOf
from queryable_app.wire.checked import OFFSET_MAX
from queryable_app.wire.http_text import optional_choice, parse_position, whole_number

DEADLINE_MS_MAX: Final = 60_000
LAG_MAX: Final = 10**12  # in ms and in records: above any lag, and exact in a double
ROUTES: Final = ("forward", "redirect", "local")

# Names of parameters; a header has the prefix `Qt-`.
READ_OPTION_NAMES: Final = (
    "consistency",
    "max-lag-ms",
    "max-lag-records",
    "min-position",
    "deadline-ms",
    "route",
)

_RETRY_MS: Final = 500  # the interval of requests for end offsets
_RETRY_INCOMPLETE_MS: Final = 1000


class Consistency(Enum):
    ANY = "any"
    BOUNDED = "bounded"
    AT_LEAST = "at-least"
    STRONG = "strong"


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Hold the options of one read."""

    consistency: Consistency = Consistency.BOUNDED
    max_lag_ms: int | None = None  # for bounded and at-least, as is the next one
    max_lag_records: int | None = None
    min_positions: Mapping[int, int] = field(default_factory=dict)  # partition → next offset
    deadline_ms: int = 2000
    route: str = "forward"
    as_of: AsOf | None = None
    """The moment of which a read wants the rows. None: the present."""
    min_sources: Mapping[int, int] = field(default_factory=dict)
    """The positions that a read of a rekeyed view names: source partition → next offset. `min_positions` is empty there."""


NeededPosition = int | tuple[int, ...]
"""What a replica must have reached: the offset of the next record, or in a rekeyed view that of each source partition."""


class ReplicaFreshness(Protocol):
    """Describe a replica as far as freshness depends on it."""

    @property
    def partition(self) -> int: ...
    @property
    def position(self) -> int: ...  # offset of the next record; -1: no record is applied
    @property
    def complete(self) -> bool: ...
    @property
    def end_offset(self) -> int: ...  # -1: unknown
    @property
    def fresh_as_of_ms(self) -> int: ...  # when it last had every record of the log; -1: never
    @property
    def source_offsets(
        self,
    ) -> tuple[int, ...]: ...  # of a rekeyed view: the next offset of each source partition
    @property
    def source_ends(self) -> tuple[int, ...]: ...  # their end offsets; empty: unknown, or not a rekeyed view
    @property
    def failed(self) -> str | None: ...  # why it stopped
    @property
    def absent(self) -> str | None: ...  # why the node has none of its data


def next_offset(replica: ReplicaFreshness) -> int:
    """Return the offset of the next record, which is 0 before the first record."""
    return max(replica.position, 0)


def position_text(replica: ReplicaFreshness) -> str:
    """Return `<partition>:<next offset>`, as in `Qt-Position` and `min-position`. A rekeyed view speaks of its source."""
    if replica.source_offsets:
        return source_positions_text(replica.source_offsets)
    return f"{replica.partition}:{next_offset(replica)}"


def source_positions_text(offsets: Sequence[int]) -> str:
    return ",".join([f"{partition}:{offset}" for partition, offset in enumerate(offsets)])


def records_short(replica: ReplicaFreshness, needed: NeededPosition) -> int:
    """Return how many records the replica must still apply to reach a position."""
    if isinstance(needed, int):
        return max(0, needed - next_offset(replica))
    return sum([max(0, end - offset) for offset, end in zip(replica.source_offsets, needed, strict=True)])


def lag_records(replica: ReplicaFreshness) -> int:
    """Return the records between the position and the end offset; -1 if the end offset is unknown."""
    if replica.source_ends:
        return records_short(replica, replica.source_ends)
    return -1 if replica.end_offset < 0 else max(0, replica.end_offset - next_offset(replica))


def lag_ms(replica: ReplicaFreshness, now_ms: int) -> int:
    """Return the milliseconds since the replica last had every record of the log; -1 if it never had.

    `now_ms` comes from `platform/clock.py`, so a step of the wall clock does not change the lag.
    """
    return -1 if replica.fresh_as_of_ms < 0 else max(0, now_ms - replica.fresh_as_of_ms)


def freshness_failure(
    replica: ReplicaFreshness, options: ReadOptions, now_ms: int, needed_position: NeededPosition | None
) -> Failure | None:
    """Return why the replica cannot answer, or None. `needed_position` is from `min-position`, or the end offset for strong."""
    if options.consistency is Consistency.ANY:
        return None
    if replica.absent is not None:
        return absent(replica, replica.absent)
    if not replica.complete:
        return _not_available(replica, options)
    needs_end = needed_position is not None or options.consistency is Consistency.STRONG
    if needs_end and replica.failed is not None and replica.end_offset < 0:
        return _not_fresh(replica, options, "cannot be compared with the log")
    if needed_position is None and options.consistency is Consistency.STRONG:
        return _not_fresh(replica, options, "was assigned to this node after its request for end offsets")
    if needed_position is not None and (short := records_short(replica, needed_position)):
        position = (
            f"{replica.partition}:{needed_position}"
            if isinstance(needed_position, int)
            else source_positions_text(needed_position)
        )
        return _not_fresh(replica, options, f"is {short} records short of the position {position}")
    if options.max_lag_ms is not None:
        failure = _beyond(replica, options, options.max_lag_ms, lag_ms(replica, now_ms), "ms")
        if failure is not None:
            return failure
    if options.max_lag_records is not None:
        return _beyond(replica, options, options.max_lag_records, lag_records(replica), "records")
    return None


def _beyond(
    replica: ReplicaFreshness, options: ReadOptions, bound: int, lag: int, unit: str
) -> Failure | None:
    if lag < 0:
        how_far = f"may be more than {bound} {unit} behind: the end offset is not known yet"
    elif lag > bound:
        how_far = f"is {lag} {unit} behind, {lag - bound} more than the {bound} asked for"
    else:
        return None
    return _not_fresh(replica, options, how_far)


def absent(replica: ReplicaFreshness, why: str) -> Failure:
    return Failure(
        Reason.NOT_AVAILABLE,
        f"the replica of partition {replica.partition} {why}",
        f"retry after {_RETRY_INCOMPLETE_MS} ms; /v1/status shows how far it is",
        partition=replica.partition,
        retry_after_ms=_RETRY_INCOMPLETE_MS,
    )


def _not_available(replica: ReplicaFreshness, options: ReadOptions) -> Failure:
    applied = replica.end_offset - lag_records(replica) if replica.source_ends else next_offset(replica)
    progress = f"{applied} of {replica.end_offset}" if replica.end_offset >= 0 else str(applied)
    detail = f"the replica of partition {replica.partition} is still being built, at offset {progress}"
    return _failure(replica, options, Reason.NOT_AVAILABLE, detail, _RETRY_INCOMPLETE_MS)


def _not_fresh(replica: ReplicaFreshness, options: ReadOptions, how_far: str) -> Failure:
    detail = f"the replica of partition {replica.partition} {how_far}"
    return _failure(replica, options, Reason.NOT_FRESH_ENOUGH, detail, _RETRY_MS)


def _failure(
    replica: ReplicaFreshness, options: ReadOptions, reason: Reason, detail: str, retry_after_ms: int
) -> Failure:
    """Return the failure. A replica that has stopped names the reason and no time to retry, since waiting does not help."""
    stopped = replica.failed is not None
    remedy = (
        "remove what stopped the replica (see /v1/status)" if stopped else f"retry after {retry_after_ms} ms"
    )
    alternative = (
        "use consistency=any to read what it has" if options.as_of is None else "name an earlier moment"
    )
    return Failure(
        reason,
        f"{detail}; it has stopped: {replica.failed}" if stopped else detail,
        f"{remedy}, or {alternative}",
        partition=replica.partition,
        position=position_text(replica),
        retry_after_ms=None if stopped else retry_after_ms,
    )


def parse_read_options(
    values: Mapping[str, Sequence[str]], defaults: ReadOptions, partitions: int, rekeyed: bool = False
) -> ReadOptions:
    """Parse the query's parameters, or the `Qt-` headers without their prefix. Other names are ignored.

    A bound implies its consistency: `min-position` implies at-least; `max-lag-*` implies bounded and may stand beside
    `min-position`. With another consistency a bound would have no effect, so it is refused.
    """
    min_positions = _min_positions(values.get("min-position", ()), partitions)
    max_lag_ms = whole_number(values, "max-lag-ms", 0, LAG_MAX)
    max_lag_records = whole_number(values, "max-lag-records", 0, LAG_MAX)
    named = optional_choice(values, "consistency", tuple(c.value for c in Consistency))

    if named is not None:
        consistency = Consistency(named)
    elif min_positions:
        consistency = Consistency.AT_LEAST
    elif max_lag_ms is not None or max_lag_records is not None:
        consistency = Consistency.BOUNDED
    else:
        consistency = defaults.consistency

    has_bounds = consistency in (Consistency.BOUNDED, Consistency.AT_LEAST)
    for name, given in (("max-lag-ms", max_lag_ms), ("max-lag-records", max_lag_records)):
        if given is not None and not has_bounds:
            raise invalid(
                name, f"means nothing to {consistency.value}", "leave it out, or use consistency=bounded"
            )
    if min_positions and consistency is not Consistency.AT_LEAST:
        advice = "leave it out, or use consistency=at-least"
        raise invalid("min-position", f"means nothing to {consistency.value}", advice)
    if consistency is Consistency.AT_LEAST and not min_positions:
        raise invalid("min-position", "is missing, and at-least needs it", "give it as <partition>:<offset>")

    deadline_ms = whole_number(values, "deadline-ms", 1, DEADLINE_MS_MAX)
    return ReadOptions(
        consistency,
        (defaults.max_lag_ms if max_lag_ms is None else max_lag_ms) if has_bounds else None,
        (defaults.max_lag_records if max_lag_records is None else max_lag_records) if has_bounds else None,
        {} if rekeyed else min_positions,
        defaults.deadline_ms if deadline_ms is None else deadline_ms,
        optional_choice(values, "route", ROUTES) or defaults.route,
        min_sources=min_positions if rekeyed else {},
    )


def _min_positions(texts: Sequence[str], partitions: int) -> dict[int, int]:
    """Parse repeated positions; a header joins them by commas. The highest of a partition counts."""
    positions: dict[int, int] = {}
    for text in (part.strip() for joined in texts for part in joined.split(",")):
        position = parse_position(text)
        if position is None or position[0] >= partitions or position[1] > OFFSET_MAX:
            raise invalid(
                "min-position",
                f"{shown(text)} is no position of this topic",
                f"give <partition>:<offset> with a partition from 0 to {partitions - 1} "
                f"and an offset from 0 to {OFFSET_MAX}",
            )
        partition, offset = position
        positions[partition] = max(offset, positions.get(partition, 0))
    return positions
