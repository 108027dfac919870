"""Run a node without Spark: a librdkafka consumer that speaks the control and row sockets, to measure Spark's share.

Only for measuring: no transform, no formats, no restarts.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from queryable_app.contract import CONTROL_SOCKET, ROW_SOCKET
from queryable_app.wire import row_frames
from queryable_app.wire.disk_format import Row, encode_row
from queryable_app.wire.partitioners import count_mismatches
from tests.integration.system import System, serving


class PlainIngest(threading.Thread):
    def __init__(self, run_dir: Path, bootstrap: str, topic: str, partitions: int) -> None:
        super().__init__(daemon=True)
        self.run_dir, self.topic, self.partitions = run_dir, topic, partitions
        self.consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "plain",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )

    def run(self) -> None:
        control = socket.socket(socket.AF_UNIX)
        control.connect(str(self.run_dir / CONTROL_SOCKET))
        lines = control.makefile("r")

        def say(**message: Any) -> None:
            control.sendall(json.dumps(message).encode() + b"\n")

        say(type="hello", protocol=1, pid=os.getpid())
        ends = {}
        for p in range(self.partitions):
            ends[p] = self.consumer.get_watermark_offsets(TopicPartition(self.topic, p), timeout=10)
        for line in lines:
            message = json.loads(line)
            if message["type"] == "wanted":
                earliest, latest = ({str(p): e[i] for p, e in ends.items()} for i in (0, 1))
                say(type="topic", id="plain", partitions=self.partitions, earliest=earliest, latest=latest)
            elif message["type"] == "start" and message["positions"]:
                say(type="state", state="streaming", mode="realtime", detail="", starts=1)
                self.stream(message["generation"], {int(p): o for p, o in message["positions"].items()})

    def stream(self, generation: int, positions: dict[int, int]) -> None:
        rows = socket.socket(socket.AF_UNIX)
        rows.connect(str(self.run_dir / ROW_SOCKET))
        rows.sendall(row_frames.encode_hello(generation, 0, 0))
        self.consumer.assign([TopicPartition(self.topic, p, max(o, 0)) for p, o in positions.items()])
        while True:
            batch: list[Any] = self.consumer.consume(1000, timeout=0.001)
            grouped = defaultdict(list)
            for message in batch:
                grouped[message.partition()].append(message)
            for partition, messages in grouped.items():
                rows.sendall(self.slice_of(partition, messages))

    def slice_of(self, partition: int, messages: list[Any]) -> bytes:
        found = []
        for message in messages:
            key, when = message.key(), message.timestamp()[1]
            stored = encode_row(Row(message.offset(), when, 0, message.value()))
            found.append(row_frames.SliceRow(key, stored, row_frames.ROW, message.offset()))
        first, last = messages[0].offset(), messages[-1].offset()
        mismatches = count_mismatches([row.disk_key for row in found], partition, self.partitions)
        header = row_frames.SliceHeader(
            partition, first, last, messages[-1].timestamp()[1], len(found), 0, 0, 0, *mismatches
        )
        return row_frames.encode_slice(header, found)


@contextmanager
def plain_node(document: dict[str, Any], directory: Path, partitions: int) -> Iterator[System]:
    """Run serve with PlainIngest in place of Spark."""
    with serving(document, directory, partitions) as (system, settings):
        topic = document["spec"]["topic"]
        PlainIngest(Path(settings.run_dir), settings.bootstrap_servers, topic, partitions).start()
        system.wait_ready()
        yield system
