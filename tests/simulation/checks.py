"""What must hold of every answer, whatever happens: held against the log itself.

The oracle knows the log with all its times. An answer states the positions as of which it holds; so it can be told, after the
fact and from outside, whether it was right and as fresh as was asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.simulation.topic import Topic
from tests.support.fold import LogRecord

_CLOCK_SECONDS = 0.003  # lags are whole milliseconds
_TOLD_SECONDS = 2.0  # the end of the log that a new copy is held against may have been told that long before


@dataclass(frozen=True, slots=True)
class Wish:
    """What a read asks for."""

    consistency: str = "bounded"
    max_lag_ms: int | None = None
    min_positions: Mapping[int, int] = field(default_factory=dict)

    def parameters(self) -> list[str]:
        """For a query string; none for the default."""
        bound = [] if self.max_lag_ms is None else [f"max-lag-ms={self.max_lag_ms}"]
        if self.consistency == "at-least":
            return [*bound, *(f"min-position={p}:{o}" for p, o in self.min_positions.items())]
        return bound if self.consistency == "bounded" else [f"consistency={self.consistency}"]


@dataclass(frozen=True, slots=True)
class Said:
    """An answer for one key."""

    key: bytes
    positions: Mapping[int, int]
    record: tuple[int, int] | None  # partition, offset; None: there is no such key
    value: bytes | None
    exact: bool  # from one copy, at one moment


class Wrong(Exception):
    """A guarantee was broken."""


def check_value(topic: Topic, said: Said) -> None:
    """The answer is the fold of the log at the positions that it states. One that was gathered from several nodes may have later
    rows in it, of each partition as of any moment since."""
    choices = {p: _choices(topic, p, said) for p in said.positions}
    if said.record is None:
        if all(None in records for records in choices.values()):
            return
        newest = [r for records in choices.values() for r in records if r is not None and r.value is None]
        if not any(_may_be_newest(record, choices) for record in newest):
            raise Wrong(f"{said.key!r} is said not to be there, and is at {said.positions}")
        return
    partition, offset = said.record
    found = [r for r in choices.get(partition, ()) if r is not None and r.offset == offset]
    if not found or not _may_be_newest(found[0], choices):
        raise Wrong(f"{said.key!r} is not the record {partition}:{offset} as of {said.positions}")
    if found[0].value != said.value:
        raise Wrong(f"{said.key!r} has another value than {said.value!r} at {partition}:{offset}")


def check_freshness(topic: Topic, wish: Wish, positions: Mapping[int, int], began: float) -> None:
    """The copies that answered were as far as was asked for."""
    for partition, position in positions.items():
        needs = {}
        if wish.max_lag_ms is not None:
            moment = began - wish.max_lag_ms / 1000 - _CLOCK_SECONDS
            needs[f"max-lag-ms={wish.max_lag_ms}"] = topic.end_at(partition, moment)
        if wish.consistency == "at-least":
            needs["at-least"] = wish.min_positions.get(partition, 0)
        if wish.consistency == "strong":
            needs["strong"] = topic.end_at(partition, began)
        for why, needed in needs.items():
            if position < needed:
                raise Wrong(
                    f"{why} of partition {partition} needs {needed}, and a copy at {position} answered"
                )


def check_named(topic: Topic, wish: Wish, said: Said) -> None:
    """No record of the key below a position that the read names is newer than the answer, wherever keys are looked for."""
    stated = [topic.last_before(p, said.key, position) for p, position in said.positions.items()]
    newest = max((_age(record) for record in stated if record is not None), default=None)
    for partition, position in wish.min_positions.items():
        record = topic.last_before(partition, said.key, position)
        if record is None or (newest is not None and newest >= _age(record)):
            continue
        if said.record is None and record.value is None:
            continue
        raise Wrong(
            f"{said.key!r} is answered as of {said.positions}, and {partition}:{record.offset}, which is newer, "
            f"is below the position {partition}:{position} that the read names"
        )


def check_completeness(
    topic: Topic, positions: Mapping[int, int], births: Mapping[int, Sequence[float]]
) -> None:
    """Each copy that answered had once held everything. `births` are the moments at which it may have begun with nothing."""
    for partition, position in positions.items():
        ends = [topic.end_at(partition, born - _TOLD_SECONDS) for born in births.get(partition, ())]
        if ends and position < min(ends):
            raise Wrong(
                f"a copy of partition {partition} that is at {position} answered as if it were complete, "
                f"and the log was at {min(ends)} before it began"
            )


def _choices(topic: Topic, partition: int, said: Said) -> list[LogRecord | None]:
    """What the partition may have had of the key."""
    position = said.positions[partition]
    choices = [topic.last_before(partition, said.key, position)]
    if not said.exact:
        choices += [
            record
            for record in topic.of_key.get(said.key, ())
            if record.partition == partition and record.offset >= position
        ]
    return choices


def _may_be_newest(record: LogRecord, choices: Mapping[int, Sequence[LogRecord | None]]) -> bool:
    return all(
        any(other is None or _age(other) < _age(record) for other in others)
        for partition, others in choices.items()
        if partition != record.partition
    )


def _age(record: LogRecord) -> tuple[int, int, int]:
    return record.timestamp_ms, record.offset, record.partition
