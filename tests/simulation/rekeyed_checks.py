"""Check the answers of a rekeyed view against its source topic.

An answer states a position in each source partition. It must have every row of earlier records. Of the record at the position
itself it may have the first rows, since a record may give several.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from queryable_app.wire.envelopes import decode_envelope
from tests.simulation.checks import GuaranteeBroken, KeyAnswer
from tests.simulation.topic import Topic
from tests.simulation.views import groups_of, shown


class SourceRows:
    """Hold the rows of each group, in the order of the source partitions."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._seen = [0] * topic.partitions
        self._by_group: dict[bytes, list[tuple[int, int, int]]] = {}  # partition, offset, number

    def of(self, group: bytes) -> Sequence[tuple[int, int, int]]:
        for partition, log in enumerate(self._topic.records):
            for record in log[self._seen[partition] :]:
                for key, serial in () if record is None else groups_of(record):
                    row = (partition, record.offset, serial)  # type: ignore[union-attr]
                    self._by_group.setdefault(key, []).append(row)
            self._seen[partition] = len(log)
        return self._by_group.get(group, ())

    def expected(self, group: bytes, positions: Mapping[int, int]) -> Iterator[list[int]]:
        """Return what a replica at these positions may have of a group: the numbers of its rows."""
        rows = self.of(group)
        below = [serial for partition, offset, serial in rows if offset < positions[partition]]
        begun: dict[int, list[int]] = {}
        for partition, offset, serial in rows:
            if offset == positions[partition]:
                begun.setdefault(partition, []).append(serial)
        for counts in product(*(range(len(some) + 1) for some in begun.values())):
            more = [some[:count] for some, count in zip(begun.values(), counts, strict=True)]
            yield below + [serial for some in more for serial in some]

    def check(self, answer: KeyAnswer) -> None:
        """Check that the answer is the fold of the source at its positions. One that is not exact may have later rows."""
        least = [*self.expected(answer.key, answer.positions)]
        if answer.record is None:
            if least[0]:
                raise GuaranteeBroken(
                    f"{answer.key!r} is reported as absent, and exists at {answer.positions}"
                )
            return
        assert answer.value is not None
        if answer.exact and answer.value not in [shown(serials, False) for serials in least if serials]:
            raise GuaranteeBroken(
                f"{answer.key!r} is {answer.value!r} as of {answer.positions}, where it is {shown(least[0], False)!r}"
            )
        count = json.loads(answer.value)["n"]
        if not len(least[0]) <= count <= len(self.of(answer.key)):
            raise GuaranteeBroken(
                f"{answer.key!r} has {count} rows as of {answer.positions}, not {len(least[0])}"
            )


def check_internal_record(ingested: Topic, answer: KeyAnswer, moves: bool) -> None:
    """Check that the record that an answer names is a row of its group in the internal topic.

    Where rows move from key to key, it may be a row of another key: its old row went, and the key shows the next one."""
    assert answer.record is not None
    partition, offset = answer.record
    record = ingested.records[partition][offset]
    of_group = record is not None and (moves or record.key == answer.key)
    if record is None or not of_group or not decode_envelope(record.value or b"").rows:
        raise GuaranteeBroken(f"{answer.key!r} names {partition}:{offset}, which has no row of it")
