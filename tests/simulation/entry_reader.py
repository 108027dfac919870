"""Read the entries of keys by their time like an HTTP client, and compare every answer with the fold of the log."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from queryable_app.serve.peers.client import PeerResponse
from queryable_app.wire.http_text import parse_positions
from tests.simulation.checks import GuaranteeBroken, ReadRequest, check_freshness
from tests.simulation.readers import PlainReader
from tests.simulation.topic import Topic


class Entry(NamedTuple):
    """Hold an entry of a key; entries compare by their order."""

    at_ms: int
    offset: int
    value: Any


class EntryReader(PlainReader):
    def target(self, key: bytes) -> str:
        return f"/v1/entries/{key.decode()}"

    def check_answer(
        self,
        key: bytes,
        read_request: ReadRequest,
        answer: PeerResponse,
        headers: Mapping[str, str],
        began: float,
    ) -> None:
        page, topic = json.loads(answer.body), self.world.topic
        found = [Entry(item["value"]["at"], item["offset"], item["value"]) for item in page["items"]]
        positions = parse_positions(headers["qt-position"]) or {}
        check_freshness(topic, read_request, positions, began)
        partition = topic.partition_of(key)
        self.world.event_counts["entries"] += len(found)
        self.world.note(f"{len(found)} entries of {key.decode()} {read_request.consistency} {positions}")
        for end in range(positions[partition], topic.end(partition) + 1):
            there = entries_at(topic, partition, end).get(key, [])
            if found == there or (page["cursor"] is not None and found == there[: len(found)]):
                return
        there = entries_at(topic, partition, positions[partition]).get(key, [])
        raise GuaranteeBroken(f"the entries of {key!r} are {found} as of {positions}, and not {there}")


def entries_at(topic: Topic, partition: int, position: int) -> dict[bytes, list[Entry]]:
    """Return the entries that the records of a partition below a position make, by key. A tombstone deletes those of its key."""
    entries: dict[bytes, list[Entry]] = {}
    for record in topic.written[partition]:
        if record.offset >= position or record.key is None:
            continue
        if record.value is None:
            entries.pop(record.key, None)
        else:
            value = json.loads(record.value)
            entries.setdefault(record.key, []).append(Entry(value["at"], record.offset, value))
    return {key: sorted(of_key, key=lambda entry: entry[:2]) for key, of_key in entries.items()}
