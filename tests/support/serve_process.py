"""Run a real `python -m queryable_app.serve` with limited resources, and an ingest that feeds it as Spark does."""

from __future__ import annotations

import json
import os
import resource
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Self

import httpx

from queryable_app.contract import CONTROL_SOCKET, ROW_SOCKET, NodeSettings
from queryable_app.wire.partitioners import partition_for
from queryable_app.wire.row_frames import encode_hello
from tests.support.node import node_settings, put, slice_frame
from tests.support.waiting import eventually

TOPIC_ID = "T1"
FrameOf = Callable[[int, int, int], tuple[bytes, int]]
"""From a partition, an offset and the end of the log to a SLICE frame that begins there, and the offset after it."""
_LIMITED = """
import resource, runpy, sys
limit = int(sys.argv.pop(1))
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
runpy.run_module("queryable_app.serve", run_name="__main__", alter_sys=True)
"""
_SECONDS_MAX = 60.0


class ServeProcess:
    """Use `serve_process`. `client` keeps a connection open, so that a status read needs no new descriptor."""

    def __init__(self, settings: NodeSettings, process: subprocess.Popen[bytes], log: Path) -> None:
        self.settings = settings
        self.process = process
        self.log = log
        self.client = httpx.Client(
            base_url=f"http://127.0.0.1:{settings.http_port}", timeout=30, verify=False
        )

    @property
    def port(self) -> int:
        return self.settings.http_port

    def memory_bytes(self, of: str = "VmRSS") -> int:
        """Return the process's use of memory; `VmHWM` is the maximum so far."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(of))

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def status(self) -> dict[str, Any]:
        return dict(self.client.get("/v1/status").json())

    def partitions(self) -> list[dict[str, Any]]:
        return list(self.status()["partitions"])

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == name]

    @contextmanager
    def limited(self, what: int, limit: int) -> Iterator[None]:
        """Limit a resource (`resource.RLIMIT_...`) of the process during the block."""
        before = resource.prlimit(self.process.pid, what)
        resource.prlimit(self.process.pid, what, (limit, before[1]))
        try:
            yield
        finally:
            resource.prlimit(self.process.pid, what, before)

    @contextmanager
    def without_descriptors(self) -> Iterator[None]:
        """Keep the open descriptors of the process, and allow no other one."""
        with self.limited(resource.RLIMIT_NOFILE, 0):
            yield


@contextmanager
def serve_process(
    directory: Path,
    partitions: int = 2,
    descriptors: int | None = None,
    spec: dict[str, Any] | None = None,
    modules: Path | None = None,
    **settings: Any,
) -> Iterator[ServeProcess]:
    """Start the process; `descriptors` is its soft and hard limit, and `spec` has fields of the resource's spec.

    `modules` is a directory whose modules take the place of installed ones. Then the process need not answer `/livez` yet.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    full_soon = {"write_buffer_mb": 4}  # memtables
    own = {"http_host": "127.0.0.1", "http_port": port, **full_soon, **settings}
    made = node_settings(directory, partitions, settings=own, **(spec or {}))
    log = directory / "serve.log"
    with log.open("wb") as stderr:
        limited = ["-c", _LIMITED, str(descriptors)] if descriptors else ["-m", "queryable_app.serve"]
        first = [] if modules is None else [str(modules)]
        path = os.pathsep.join([*first, *filter(None, [os.environ.get("PYTHONPATH")])])
        process = subprocess.Popen(
            [sys.executable, *limited],
            env={**os.environ, **made.to_env(), "PYTHONPATH": path},
            stderr=stderr,
        )
    served = ServeProcess(made, process, log)
    try:
        eventually("the process serves", lambda: bool(served.events("serving")) or process.poll() is not None)
        assert modules is not None or served.client.get("/livez").status_code == 200
        yield served
    finally:
        served.client.close()
        process.kill()
        process.wait()


class FakeIngest(threading.Thread):
    """Stream records of `value_bytes` from serve's positions, over one connection per partition, as Spark's tasks do."""

    def __init__(
        self,
        served: ServeProcess,
        partitions: int = 2,
        value_bytes: int = 4000,
        frame_of: FrameOf | None = None,
    ) -> None:
        super().__init__(daemon=True)
        self._run_dir = Path(served.settings.run_dir)
        self._frame_of = frame_of or partial(_frame_of_one, partitions, value_bytes)
        self.ends = dict.fromkeys(range(partitions), 0)
        """Where the log of each partition ends; a test raises it."""
        self.starts = 0
        """The number of starts that serve has sent."""
        self.streams = True
        """False: tasks send nothing, and ingest says that it streams."""
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join(_SECONDS_MAX)

    def run(self) -> None:
        while not self._ended.wait(0.05):
            with suppress(OSError), socket.socket(socket.AF_UNIX) as control:
                control.connect(str(self._run_dir / CONTROL_SOCKET))
                _send(control, type="hello", protocol=1, pid=os.getpid())
                self._converse(control)

    def _converse(self, control: socket.socket) -> None:
        rest, tasks = b"", _Tasks({}, 0, self._run_dir)
        try:
            while not self._ended.is_set():
                if select.select([control], [], [], 0.02)[0]:
                    received = control.recv(1 << 16)
                    if not received:
                        return
                    *lines, rest = (rest + received).split(b"\n")
                    for message in map(json.loads, lines):
                        if message["type"] == "wanted":
                            offsets = {str(p): end for p, end in self.ends.items()}
                            earliest = dict.fromkeys(offsets, 0)
                            _send(
                                control,
                                type="topic",
                                id=TOPIC_ID,
                                partitions=len(offsets),
                                earliest=earliest,
                                latest=offsets,
                            )
                        elif message["type"] == "start":
                            tasks.close()
                            self.starts += 1
                            positions = {int(p): max(0, at) for p, at in message["positions"].items()}
                            tasks = _Tasks(positions, message["generation"], self._run_dir)
                            _send(
                                control, type="state", state="streaming", mode="realtime", detail="", starts=1
                            )
                if self.streams:
                    tasks.send_on(self.ends, self._frame_of)
        finally:
            tasks.close()


class _Tasks:
    def __init__(self, positions: dict[int, int], generation: int, run_dir: Path) -> None:
        self._positions = positions
        self._sockets: dict[int, socket.socket] = {}
        for partition in positions:
            task = self._sockets[partition] = socket.socket(socket.AF_UNIX)
            task.connect(str(run_dir / ROW_SOCKET))
            task.sendall(encode_hello(generation, partition, 0))
            task.setblocking(False)
        self._unsent = dict.fromkeys(positions, b"")

    def send_on(self, ends: dict[int, int], frame_of: FrameOf) -> None:
        """Send as much as serve accepts."""
        for partition, task in self._sockets.items():
            with suppress(BlockingIOError):
                while self._unsent[partition] or self._positions[partition] < ends[partition]:
                    if not self._unsent[partition]:
                        offset, end = self._positions[partition], ends[partition]
                        frame, self._positions[partition] = frame_of(partition, offset, end)
                        self._unsent[partition] = frame
                    self._unsent[partition] = self._unsent[partition][task.send(self._unsent[partition]) :]

    def close(self) -> None:
        for task in self._sockets.values():
            task.close()


def _frame_of_one(
    partitions: int, value_bytes: int, partition: int, offset: int, _end: int
) -> tuple[bytes, int]:
    key = key_of(partition, offset, partitions).encode()
    row = put(offset, key, value_of(partition, offset, value_bytes))
    return slice_frame(row, partition=partition), offset + 1


def key_of(partition: int, offset: int, partitions: int) -> str:
    """Return the key of a record, which Kafka's own partitioner maps to this partition."""
    keys = (f"{partition}-{offset}-{number}" for number in count())
    return next(key for key in keys if partition_for(key.encode(), "murmur2", partitions) == partition)


def value_of(partition: int, offset: int, value_bytes: int) -> bytes:
    """Return a JSON text that does not compress."""
    return json.dumps(f"{partition}-{offset}-" + os.urandom(value_bytes // 2).hex()).encode()


def _send(control: socket.socket, **message: Any) -> None:
    control.sendall(json.dumps(message).encode() + b"\n")
