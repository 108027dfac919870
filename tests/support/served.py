"""Run a node over real stores and a real port in a thread of its own, without Kafka and ingest."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import httpx
import uvicorn
import uvloop

from queryable_app.contract import NodeSettings
from queryable_app.placement.assignment import Placement, initial_placement
from queryable_app.platform.clock import monotonic_ms
from queryable_app.serve.api.app import create_app
from queryable_app.serve.http.fast_lane import FastLane
from queryable_app.serve.http.protocol import protocol_class
from queryable_app.serve.http.tls_listener import TlsServer
from queryable_app.serve.node import Node
from queryable_app.wire.disk_format import ReplicaState, Row, encode_row
from queryable_app.wire.partitioners import count_mismatches, partition_for, sum_of_mismatches
from queryable_app.wire.row_frames import SliceRow
from tests.support.aggregates import contribution_row
from tests.support.node import slice_payload

T = TypeVar("T")

READ_DEADLINE_MS: Final = 10_000
"""The deadline of a read that names none: beside other tests a node may wait seconds for a core."""


class Served:
    """Provide the node and its address, and put rows into it."""

    def __init__(self, node: Node, listener: socket.socket) -> None:
        self.node = node
        self.port: int = listener.getsockname()[1]
        self.url = f"{'http' if node.tls is None else 'https'}://127.0.0.1:{self.port}"
        self.app = create_app(node)
        self.protocol: type[FastLane] = protocol_class(node)
        self._listener = listener
        self._loop: asyncio.AbstractEventLoop | None = None
        self.server = TlsServer(
            uvicorn.Config(
                self.app,
                http=self.protocol,
                lifespan="off",
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
            ),
            node.tls,
            node.counters,
            node.settings.head_seconds_max,
        )
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: uvloop.run(self._serve()), daemon=True)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        serving = asyncio.create_task(self.server.serve([self._listener]))
        while not self.server.started:
            await asyncio.sleep(0.001)
        await self.node.checkpoints.start()
        if self.node.tls is not None:
            await self.node.tls.start()
        await self.node.peers.start()
        self._started.set()
        await serving
        await self.node.assigned_replicas.stop()
        await self.node.peers.stop()
        await self.node.checkpoints.stop()
        if self.node.tls is not None:
            await self.node.tls.stop()
        self.node.replicas.close()

    def __enter__(self) -> Served:
        self._thread.start()
        assert self._started.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        self._thread.join(10)
        assert not self._thread.is_alive()

    def on_loop(self, function: Callable[[], T]) -> T:
        """Run the function on the event loop's thread, which owns the stores."""
        assert self._loop is not None

        async def call() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(10)

    def begin(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start on the node's loop, and return the pending result."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def put(
        self,
        key: bytes,
        value: bytes | None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        expiry_ms: int = 0,
    ) -> tuple[int, int]:
        """Apply the next record of the key's partition, as ingest would write it; return its partition and offset."""
        partitions = self.node.replicas.partitions
        where = partition_for(key, "murmur2", partitions) if partition is None else partition

        def write() -> tuple[int, int]:
            replica = self.node.replicas.by_partition[where]
            offset = max(0, replica.position)
            of_record = count_mismatches([key], where, partitions)
            state = replica.state._replace(
                position=offset + 1,
                rows=replica.state.rows + 1,
                mismatches=sum_of_mismatches((replica.state.mismatches, of_record)),
            )
            row = Row(offset, now_ms() if timestamp_ms is None else timestamp_ms, expiry_ms, value)
            replica.apply([(self.node.codec.to_disk(key), encode_row(row))], state)
            if replica.complete:
                replica.note_end_offset(monotonic_ms(), replica.position)
            self.node.replicas.note_mismatches()
            return where, offset

        return self.on_loop(write)

    def contribute(
        self,
        key: bytes,
        types: str,
        inputs: Sequence[Any],
        *,
        partition: int | None = None,
        timestamp_ms: int = 1,
    ) -> tuple[int, int]:
        """Apply the next record of the key's partition to an aggregated view; return its partition and offset."""
        partitions = self.node.replicas.partitions
        where = partition_for(key, "murmur2", partitions) if partition is None else partition

        def apply() -> tuple[int, int]:
            replica = self.node.replicas.by_partition[where]
            offset = max(0, replica.position)
            row = contribution_row(offset, self.node.codec.to_disk(key), types, inputs, timestamp_ms)
            murmur2, crc32, fnv1a = count_mismatches([key], where, partitions)
            header = {"mismatches_murmur2": murmur2, "mismatches_crc32": crc32, "mismatches_fnv1a": fnv1a}
            self.node.slices.apply(slice_payload(row, partition=where, **header))
            replica.note_end_offset(monotonic_ms(), replica.position)
            return where, offset

        return self.on_loop(apply)

    def put_slice(self, *rows: SliceRow, partition: int = 0) -> None:
        """Apply rows of one partition in one slice, as ingest sends them."""

        def write() -> None:
            self.node.slices.apply(slice_payload(*rows, partition=partition))
            replica = self.node.replicas.by_partition[partition]
            replica.note_end_offset(monotonic_ms(), replica.position)

        self.on_loop(write)

    def fill(self, rows: int, value: Callable[[int], bytes] = lambda n: b'{"n":%d}' % n) -> None:
        """Put `key-000000` and on, in one batch per partition."""
        partitions = self.node.replicas.partitions

        def write() -> None:
            for partition, replica in self.node.replicas.by_partition.items():
                numbers = [
                    n
                    for n in range(rows)
                    if partition_for(b"key-%06d" % n, "murmur2", partitions) == partition
                ]
                puts = [(b"key-%06d" % n, encode_row(Row(o, 1, 0, value(n)))) for o, n in enumerate(numbers)]
                replica.apply(puts, replica.state._replace(position=len(puts), rows=len(puts)))
                replica.note_end_offset(monotonic_ms(), replica.position)

        self.on_loop(write)

    def client(self, **options: Any) -> httpx.Client:
        """Return an HTTP client. It loads no trusted certificates, which would take longer than most tests."""
        defaults: dict[str, Any] = {"base_url": self.url, "timeout": 15, "verify": False}
        return httpx.Client(**(defaults | options))


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@contextmanager
def served(
    directory: Path,
    *,
    partitions: int = 2,
    ordinal: int = 0,
    placement: Placement | None = None,
    listener: socket.socket | None = None,
    complete: bool = True,
    settings: dict[str, Any] | None = None,
    **spec: Any,
) -> Iterator[Served]:
    """Run a node of an empty topic, with complete replicas by default. Keywords set fields of its spec."""
    directory.mkdir(parents=True, exist_ok=True)
    listening = listener or socket.create_server(("127.0.0.1", 0))
    scheme = "https" if "tls" in spec else "http"
    url = f"{scheme}://127.0.0.1:{listening.getsockname()[1]}"
    first = placement or initial_placement("tests.users.r1", partitions, [url], 1)
    (directory / "placement.json").write_text(first.to_json())
    spec_path = directory / "spec.json"
    spec_path.write_text(json.dumps({"kafka": {"bootstrapServers": "127.0.0.1:1"}, "topic": "users", **spec}))
    node = Node.open(
        NodeSettings(
            name=f"users-r1-{ordinal}",
            ordinal=ordinal,
            application_id="tests.users.r1",
            spec_path=str(spec_path),
            bootstrap_servers="127.0.0.1:1",
            advertised_url=url,
            data_dir=str(directory / "data"),
            run_dir=str(directory / "run"),
            placement_path=str(directory / "placement.json"),
            **({"read_deadline_ms": READ_DEADLINE_MS} | (settings or {})),
        )
    )
    if complete:
        for replica in node.replicas.by_partition.values():
            replica.apply((), ReplicaState(0, True))
            replica.note_end_offset(monotonic_ms(), 0)
    with Served(node, listening) as running:
        yield running


def exchange(port: int, *pieces: bytes, timeout: float = 10) -> bytes:
    """Send the pieces one after the other, and return all bytes until the node closes or is silent."""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in pieces:
            connection.sendall(piece)
        return read_answers(connection, 1)


def read_answers(connection: socket.socket, count: int) -> bytes:
    """Return the bytes of `count` answers that have a Content-Length."""
    received = b""
    while not _holds(received, count):
        chunk = connection.recv(1 << 16)
        if not chunk:
            break
        received += chunk
    return received


def _holds(received: bytes, count: int) -> bool:
    for _ in range(count):
        head, separator, rest = received.partition(b"\r\n\r\n")
        if not separator:
            return False
        length = next(
            (int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
        )
        if len(rest) < length:
            return False
        received = rest[length:]
    return True


def parsed(answer: bytes) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers and body of one answer."""
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return int(status.split(" ")[1]), headers, body
