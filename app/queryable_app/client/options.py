"""Check the options of a read before it is sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Final, TypedDict, get_args

from queryable_app.client.exceptions import InvalidRequest
from queryable_app.config.topic_spec import ConsistencyName
from queryable_app.errors import shown
from queryable_app.policy.freshness import DEADLINE_MS_MAX, LAG_MAX, Consistency
from queryable_app.wire.checked import OFFSET_MAX
from queryable_app.wire.http_text import parse_positions

DEADLINE_MS: Final = 2_000
PAGE_DEADLINE_MS: Final = 10_000
COUNT_DEADLINE_MS: Final = 60_000


class ReadOptions(TypedDict, total=False):
    """Options of every read. The client takes the same ones as defaults for reads that give none."""

    consistency: ConsistencyName
    """How fresh the answering replica must be. Default: the view's own consistency."""
    max_lag_ms: int
    """For bounded and at-least: how many ms the replica may lag."""
    max_lag_records: int
    """For bounded and at-least: how many records the replica may lag."""
    min_position: str | Mapping[int, int]
    """For at-least: a `Written.position` or `Row.position`, or partition → next offset."""
    deadline_ms: int
    """For all of the read: connecting, retries, other replicas, waiting for freshness."""


_NAMES: Final = tuple(ReadOptions.__annotations__)


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """Hold the checked options of a read."""

    consistency: Consistency | None = None  # None: the view's own
    max_lag_ms: int | None = None
    max_lag_records: int | None = None
    min_positions: tuple[tuple[int, int], ...] = ()
    deadline_ms: int | None = None  # None: the default of the kind of read

    @property
    def waits(self) -> bool:
        """Whether a node may wait before it answers."""
        return self.consistency in (Consistency.AT_LEAST, Consistency.STRONG)

    def can_require(self, floors: Mapping[int, int]) -> bool:
        """Return whether one request can require these floors. A strong read cannot: the client checks its response."""
        return bool(floors) and self.consistency is not Consistency.STRONG

    def at_least(self, floors: Mapping[int, int]) -> ReadSettings:
        """Return the same settings for a replica that has reached the floors too, if one request can require both."""
        if not self.can_require(floors):
            return self
        merged = dict(floors)
        for partition, offset in self.min_positions:
            merged[partition] = max(offset, merged.get(partition, 0))
        return replace(self, consistency=Consistency.AT_LEAST, min_positions=tuple(sorted(merged.items())))

    def parameters(self, left_ms: int | None) -> list[str]:
        """Return the parameters of the query string. A read without options has none, and takes the nodes' fast lane."""
        pairs = [
            ("consistency", self.consistency.value if self.consistency else None),
            ("max-lag-ms", self.max_lag_ms),
            ("max-lag-records", self.max_lag_records),
            ("min-position", ",".join(f"{p}:{o}" for p, o in self.min_positions) or None),
            ("deadline-ms", left_ms),
        ]
        return [f"{name}={value}" for name, value in pairs if value is not None]


def parse_options(options: Mapping[str, object], defaults: ReadSettings) -> ReadSettings:
    """Return the settings of a read. Raises InvalidRequest, which names the option."""
    for name in options:
        if name not in _NAMES:
            nearest = get_close_matches(name, _NAMES, 1, 0.5)
            hint = f"did you mean {nearest[0]}? " if nearest else ""
            raise InvalidRequest(
                f"{name}: is no option of a read", f"{hint}The options are {', '.join(_NAMES)}"
            )
    deadline_ms = _number(options, "deadline_ms", 1, DEADLINE_MS_MAX)
    settings = ReadSettings(
        _consistency(options.get("consistency")),
        _number(options, "max_lag_ms", 0, LAG_MAX),
        _number(options, "max_lag_records", 0, LAG_MAX),
        _positions(options.get("min_position")),
    )
    bounded = settings.max_lag_ms is not None or settings.max_lag_records is not None
    if settings == ReadSettings():  # no option of freshness is given: all of the defaults apply
        settings = replace(defaults, deadline_ms=None)
    elif settings.consistency is None:
        implied = Consistency.AT_LEAST if settings.min_positions else Consistency.BOUNDED
        settings = replace(settings, consistency=implied)
    if bounded and settings.consistency not in (Consistency.BOUNDED, Consistency.AT_LEAST):
        raise InvalidRequest(
            "max_lag_ms, max_lag_records: are for bounded and at-least", "read with consistency='bounded'"
        )
    if bool(settings.min_positions) is not (settings.consistency is Consistency.AT_LEAST):
        raise InvalidRequest("min_position: goes with at-least, and at-least with it", "give both or neither")
    return replace(settings, deadline_ms=defaults.deadline_ms if deadline_ms is None else deadline_ms)


def _consistency(given: object) -> Consistency | None:
    if given is None:
        return None
    if given not in get_args(ConsistencyName):
        names = ", ".join(get_args(ConsistencyName))
        raise InvalidRequest(f"consistency: {shown(given)} is not one of {names}", "give one of them")
    return Consistency(given)


def _number(options: Mapping[str, object], name: str, low: int, high: int) -> int | None:
    given = options.get(name)
    if given is None:
        return None
    if not isinstance(given, int) or isinstance(given, bool) or not low <= given <= high:
        raise InvalidRequest(
            f"{name}: {shown(given)} is not allowed", f"give a whole number from {low} to {high}"
        )
    return given


def _positions(given: object) -> tuple[tuple[int, int], ...]:
    if given is None:
        return ()
    positions = parse_positions(given) if isinstance(given, str) else given
    if (
        not isinstance(positions, Mapping)
        or not positions
        or not all(_is_offset(partition) and _is_offset(offset) for partition, offset in positions.items())
    ):
        raise InvalidRequest(
            f"min_position: {shown(given)} is no position",
            "give '<partition>:<next offset>', or {partition: offset}",
        )
    return tuple(sorted(positions.items()))


def _is_offset(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= OFFSET_MAX
