"""Check every answer against the log itself.

The oracle has the log with all its times, and an answer states the positions as of which it holds. Therefore a check can decide
afterwards whether the answer was right, and as fresh as requested.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.simulation.topic import Topic
from tests.support.fold import LogRecord

_CLOCK_SECONDS = 0.003  # lags are whole milliseconds


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """Hold the options of a read."""

    consistency: str = "bounded"
    max_lag_ms: int | None = None
    min_positions: Mapping[int, int] = field(default_factory=dict)

    def parameters(self) -> list[str]:
        """Return the query parameters; none for the default."""
        bound = [] if self.max_lag_ms is None else [f"max-lag-ms={self.max_lag_ms}"]
        if self.consistency == "at-least":
            return [*bound, *(f"min-position={p}:{o}" for p, o in self.min_positions.items())]
        return bound if self.consistency == "bounded" else [f"consistency={self.consistency}"]


@dataclass(frozen=True, slots=True)
class KeyAnswer:
    """Hold the answer for one key."""

    key: bytes
    positions: Mapping[int, int]
    record: tuple[int, int] | None  # partition, offset; None: there is no such key
    value: bytes | None
    exact: bool  # from one replica, at one moment


class GuaranteeBroken(Exception):
    """Report a broken guarantee."""


def check_value(topic: Topic, answer: KeyAnswer) -> None:
    """Check that the answer is the fold of the log at its positions.

    An answer that was gathered from several nodes may have later rows, of each partition as of any later moment.
    """
    choices = {p: possible_records(topic, p, answer) for p in answer.positions}
    if answer.record is None:
        if all(None in records for records in choices.values()):
            return
        newest = [r for records in choices.values() for r in records if r is not None and r.value is None]
        if not any(may_be_newest(record, choices) for record in newest):
            raise GuaranteeBroken(f"{answer.key!r} is reported as absent, and exists at {answer.positions}")
        return
    partition, offset = answer.record
    found = [r for r in choices.get(partition, ()) if r is not None and r.offset == offset]
    if not found or not may_be_newest(found[0], choices):
        raise GuaranteeBroken(
            f"{answer.key!r} is not the record {partition}:{offset} as of {answer.positions}"
        )
    if found[0].value != answer.value:
        raise GuaranteeBroken(
            f"{answer.key!r} has another value than {answer.value!r} at {partition}:{offset}"
        )


def check_freshness(
    topic: Topic, read_request: ReadRequest, positions: Mapping[int, int], began: float
) -> None:
    """Check that the replicas that answered were as fresh as requested."""
    for partition, position in positions.items():
        needs = {}
        if read_request.max_lag_ms is not None:
            moment = began - read_request.max_lag_ms / 1000 - _CLOCK_SECONDS
            needs[f"max-lag-ms={read_request.max_lag_ms}"] = topic.end_at(partition, moment)
        if read_request.consistency == "at-least":
            needs["at-least"] = read_request.min_positions.get(partition, 0)
        if read_request.consistency == "strong":
            needs["strong"] = topic.end_at(partition, began)
        for why, needed in needs.items():
            if position < needed:
                raise GuaranteeBroken(
                    f"{why} of partition {partition} needs {needed}, and a replica at {position} answered"
                )


def check_named_positions(topic: Topic, read_request: ReadRequest, answer: KeyAnswer) -> None:
    """Check that no record below a position that the read names is newer than the answer, in any partition.

    A later record of the same partition replaces it, whatever their times."""
    stated = {p: topic.last_before(p, answer.key, position) for p, position in answer.positions.items()}
    newest = max((_age(record) for record in stated.values() if record is not None), default=None)
    for partition, position in read_request.min_positions.items():
        record = topic.last_before(partition, answer.key, position)
        if record is None or (newest is not None and newest >= _age(record)):
            continue
        replaced_by = stated.get(partition)
        if replaced_by is not None and replaced_by.offset > record.offset:
            continue
        if answer.record is None and record.value is None:
            continue
        raise GuaranteeBroken(
            f"{answer.key!r} is answered as of {answer.positions}, and {partition}:{record.offset}, which is newer, "
            f"is below the position {partition}:{position} that the read names"
        )


def check_completeness(
    topic: Topic, positions: Mapping[int, int], possible_creation_times: Mapping[int, Sequence[float]]
) -> None:
    """Check that each replica that answered had been complete. It was empty at one of `possible_creation_times`."""
    for partition, position in positions.items():
        ends = [topic.end_told_at(partition, born) for born in possible_creation_times.get(partition, ())]
        if ends and position < min(ends):
            raise GuaranteeBroken(
                f"a replica of partition {partition} at {position} answered as complete, "
                f"and the log was at {min(ends)} before it was created"
            )


def possible_records(topic: Topic, partition: int, answer: KeyAnswer) -> list[LogRecord | None]:
    """Return the records of the key that the partition may have had."""
    position = answer.positions[partition]
    choices = [topic.last_before(partition, answer.key, position)]
    if not answer.exact:
        choices += [
            record
            for record in topic.of_key.get(answer.key, ())
            if record.partition == partition and record.offset >= position
        ]
    return choices


def may_be_newest(record: LogRecord, choices: Mapping[int, Sequence[LogRecord | None]]) -> bool:
    """Tell whether no other partition surely has a newer record of the key."""
    return all(
        any(other is None or _age(other) < _age(record) for other in others)
        for partition, others in choices.items()
        if partition != record.partition
    )


def _age(record: LogRecord) -> tuple[int, int, int]:
    return record.timestamp_ms, record.offset, record.partition
