"""Read the windows of keys like an HTTP client, and compare every answer with the fold of the log."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from queryable_app.serve.peers.client import PeerResponse
from queryable_app.wire.http_text import parse_positions
from queryable_app.wire.times import parse_time
from tests.simulation.checks import GuaranteeBroken, ReadRequest, check_freshness
from tests.simulation.readers import PlainReader
from tests.simulation.rekeyed_windows import Found, check_grouped_windows
from tests.simulation.topic import Topic
from tests.simulation.views import View, window_record
from tests.support.windows import Expected, Record, expected


class WindowReader(PlainReader):
    def target(self, key: bytes) -> str:
        return f"/v1/windows/{key.decode()}"

    def check_answer(
        self,
        key: bytes,
        read_request: ReadRequest,
        answer: PeerResponse,
        headers: Mapping[str, str],
        began: float,
    ) -> None:
        found = found_windows(json.loads(answer.body)["items"])
        positions = parse_positions(headers["qt-position"]) or {}
        check_freshness(self.world.topic, read_request, positions, began)
        self.world.note(f"{len(found)} windows of {key.decode()} {read_request.consistency} {positions}")
        if self.world.view.rekeyed:
            check_grouped_windows(self.world.topic, self.world.view, key, positions, found)
            return
        partition = self.world.topic.partition_of(key)
        check_windows(self.world.topic, self.world.view, partition, key, positions[partition], found)


def found_windows(items: Sequence[Mapping[str, Any]]) -> Found:
    return {
        (each["key"].encode(), _ms(each["window"]["start"]), _ms(each["window"]["end"])): (
            each["window"]["final"],
            each["value"],
        )
        for each in items
    }


def check_windows(topic: Topic, view: View, partition: int, key: bytes, position: int, found: Found) -> None:
    """Check windows of one key that were read from a replica at this position, or from there on."""
    swept_until = windows_at(topic, view, partition, topic.end(partition)).watermark
    stated = windows_at(topic, view, partition, position)
    for end in range(position, topic.end(partition) + 1):
        record = topic.records[partition][end - 1] if end > position else None
        if end > position and (record is None or record.key != key):
            continue
        there = replace(windows_at(topic, view, partition, end), watermark=stated.watermark)
        items = {window: item for window, item in there.items(view.rules).items() if window[0] == key}
        kept = replace(there, watermark=swept_until).items(view.rules)
        if all(items.get(window) == item for window, item in found.items()) and all(
            window in found or window not in kept for window in items
        ):
            return
    items = {window: item for window, item in stated.items(view.rules).items() if window[0] == key}
    raise GuaranteeBroken(f"the windows of {key!r} are {found} as of {partition}:{position}, not {items}")


def windows_at(topic: Topic, view: View, partition: int, position: int) -> Expected:
    """Return the fold of a partition below a position."""
    records: list[Record | None] = [
        None if record is None or record.key is None or record.value is None else window_record(record)
        for record in topic.records[partition][:position]
    ]
    return expected(records, view.rules)


def _ms(time: str) -> int:
    found = parse_time(time)
    assert found is not None
    return found
