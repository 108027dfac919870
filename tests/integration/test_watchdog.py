"""Test the watchdog with a real Spark: one of its tasks stands still while ingest reports that it streams."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from queryable_app.contract import ROW_SOCKET
from queryable_app.wire.partitioners import partition_for
from tests.integration import topics
from tests.integration.system import System, resource, running
from tests.support.waiting import eventually

TOPIC = "stalls"


class RowRelay:
    """Stand between Spark's tasks and serve.

    `stall_next` stops reading from the next connection that sends something, and from all later ones until `resume`.
    """

    def __init__(self, path: Path) -> None:
        self.connections = 0
        self.stalled = threading.Event()
        self._stall_next = threading.Event()
        self._ended = threading.Event()
        self._resumed = threading.Event()
        self._resumed.set()
        self._target = path.with_name("serve.sock")
        path.rename(self._target)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def stall_next(self) -> None:
        self._stall_next.set()

    def resume(self) -> None:
        self._resumed.set()

    def close(self) -> None:
        self._ended.set()
        self._resumed.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                task, _ = self._listener.accept()
                serve = socket.socket(socket.AF_UNIX)
                serve.connect(str(self._target))
                self.connections += 1
                self._resumed.wait()
                for source, sink in ((task, serve), (serve, task)):
                    threading.Thread(
                        target=self._pass, args=(source, sink, source is task), daemon=True
                    ).start()

    def _pass(self, source: socket.socket, sink: socket.socket, from_task: bool) -> None:
        with suppress(OSError), source:
            while chunk := source.recv(1 << 16):
                if from_task and self._stall_next.is_set():
                    self._stall_next.clear()
                    self._resumed.clear()
                    self.stalled.set()
                    self._ended.wait()
                sink.sendall(chunk)
            sink.shutdown(socket.SHUT_WR)


@contextmanager
def row_relay(system: System) -> Iterator[RowRelay]:
    """Put a relay in the place of `rows.sock`, before Spark has started."""
    path = Path(psutil.Process(system.pid("serve")).environ()["QT_RUN_DIR"]) / ROW_SOCKET
    eventually("serve listens", path.exists)
    relay = RowRelay(path)
    try:
        yield relay
    finally:
        relay.close()


def test_task_that_stands_still_is_started_again(kafka: Any, tmp_path: Path) -> None:
    """A task blocks in a write for ever. Status, readyz and the log name its partition, its query starts again, and rows
    arrive; the other partition continues meanwhile."""
    topics.create(kafka.bootstrap, TOPIC, 2)
    still, moving = (key_of(partition) for partition in range(2))
    with running(resource(TOPIC, kafka.bootstrap), tmp_path, wait=False) as system:
        eventually("run.json", lambda: (system.data / "run.json").exists(), 120)
        with row_relay(system) as relay:
            system.wait_ready()
            topics.produce(kafka.bootstrap, TOPIC, [(still, b"0"), (moving, b"0")])
            eventually(
                "rows arrive", lambda: system.value(still.decode()) == system.value(moving.decode()) == 0
            )
            relay.stall_next()
            fills_buffers = [(still, json.dumps("x" * 1000).encode()) for _ in range(4000)]
            topics.produce(kafka.bootstrap, TOPIC, [*fills_buffers, (still, b"1")])
            assert relay.stalled.wait(90)
            connections = relay.connections
            topics.produce(kafka.bootstrap, TOPIC, [(moving, b"1")])
            eventually("the other partition continues", lambda: system.value(moving.decode()) == 1)

            eventually("the query starts again", lambda: relay.connections > connections, 90)
            assert [bool(p["stalled"]) for p in system.status()["partitions"]] == [True, False]
            assert system.get("/readyz").json()["stalled"] == [0]
            assert '"event": "stalled"' in system.node_logs()
            relay.resume()
            eventually("rows arrive again", lambda: system.value(still.decode()) == 1)
            eventually("no partition is stalled", lambda: system.get("/readyz").json()["stalled"] == [])


def key_of(partition: int) -> bytes:
    keys = (b"k-%d" % number for number in range(100))
    return next(key for key in keys if partition_for(key, "murmur2", 2) == partition)
