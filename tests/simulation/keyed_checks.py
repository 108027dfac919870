"""Check the answers of a latest-value view under another key against its source topic.

An answer states a position in each source partition. Of each record key it must have the last record before the position.
Compaction may remove a record that a later one replaces: then a replica that has not read it still has an earlier one, or none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.simulation.checks import GuaranteeBroken, KeyAnswer
from tests.simulation.topic import Topic
from tests.simulation.writer_keys import CHANGING_KEYS, STABLE_KEYS, changing_key, stable_key
from tests.support.fold import LogRecord, fold

_KEYLESS_KEYS = 2  # records without a key are never deleted, so they keep these keys for good


def new_key(record: LogRecord) -> bytes | None:
    """Return the key of a record in the view; None: it has none. A stable record key never moves, others meet and share."""
    if record.value is None:
        return None
    serial = int(record.value)
    if record.key is None:
        return changing_key(serial % _KEYLESS_KEYS)
    if record.key.startswith(b"stable"):
        return record.key
    choice, number = serial % 5, serial // 5
    if choice == 0:
        return None
    return stable_key(number % STABLE_KEYS) if choice == 1 else changing_key(number % (CHANGING_KEYS // 2))


def last_rows(topic: Topic, partition: int) -> dict[bytes, bytes]:
    """Return the rows that the whole topic gives one internal partition: the newest live record of each new key."""
    records = []
    for written in topic.written:
        for record in written:
            # Equal record keys in two source partitions are two, and each record without a key replaces none.
            name = b"%d/%d" % (record.partition, record.offset) if record.key is None else record.key
            records.append(
                LogRecord(record.partition, record.offset, 0, b"%d " % record.partition + name, record.value)
            )
    newest: dict[bytes, LogRecord] = {}
    for row in fold(records).values():
        record = topic.written_at(row.partition, row.offset)
        key = new_key(record)
        if key is not None and (key not in newest or _version(newest[key]) < _version(record)):
            newest[key] = record
    return {
        key: record.value
        for key, record in newest.items()
        if record.value is not None and topic.partition_of(key) == partition
    }


class KeyedRows:
    """Hold the records of each record key, and the record keys that ever had a new key."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._seen = [0] * topic.partitions
        self._records: dict[tuple[int, bytes | int], list[LogRecord]] = {}
        self._owners: dict[bytes, dict[tuple[int, bytes | int], None]] = {}
        self._by_value: dict[bytes, LogRecord] = {}

    def check(self, answer: KeyAnswer) -> None:
        """Check that the answer is what the source gives at its positions. One that is not exact may have later records."""
        self._read()
        shown = None
        if answer.record is not None:
            assert answer.value is not None
            shown = self._by_value.get(answer.value)
            if shown is None or new_key(shown) != answer.key or not self._may_be_there(shown, answer):
                raise GuaranteeBroken(f"{answer.key!r} is {answer.value!r} as of {answer.positions}")
        for owner in self._owners.get(answer.key, ()):
            possible = self._possible(owner, answer.positions)
            last = possible[0]
            if len(possible) > 1 or last is None or new_key(last) != answer.key:
                continue
            if not answer.exact and self._records[owner][-1] is not last:
                continue
            if shown is None or _version(shown) < _version(last):
                raise GuaranteeBroken(
                    f"{answer.key!r} is {answer.value!r} as of {answer.positions}, and {last} has it there"
                )

    def with_value(self, value: bytes) -> LogRecord | None:
        """Return the record with a value; None: no record of a new key has it."""
        self._read()
        return self._by_value.get(value)

    def _may_be_there(self, record: LogRecord, answer: KeyAnswer) -> bool:
        later = record.offset >= answer.positions[record.partition]
        return record in self._possible(_owner(record), answer.positions) or (later and not answer.exact)

    def _possible(
        self, owner: tuple[int, bytes | int], positions: Mapping[int, int]
    ) -> Sequence[LogRecord | None]:
        """Return the records of which a record key may have one at these positions. None: it may have none."""
        partition, found = owner[0], []
        for record in reversed(self._records[owner]):
            if record.offset < positions[partition]:
                found.append(record)
                if self._topic.records[partition][record.offset] is not None:
                    return found
        return [*found, None]

    def _read(self) -> None:
        for partition, written in enumerate(self._topic.written):
            for record in written[self._seen[partition] :]:
                owner = _owner(record)
                self._records.setdefault(owner, []).append(record)
                key = new_key(record)
                if key is not None and record.value is not None:
                    self._owners.setdefault(key, {})[owner] = None
                    self._by_value[record.value] = record
            self._seen[partition] = len(written)


def _owner(record: LogRecord) -> tuple[int, bytes | int]:
    return record.partition, record.offset if record.key is None else record.key


def _version(record: LogRecord) -> tuple[int, int, int]:
    return record.timestamp_ms, record.partition, record.offset
