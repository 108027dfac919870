"""Test nodes that end: real processes without Kafka and ingest, behind a stand-in for a Service."""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from queryable_app.contract import NodeSettings
from queryable_app.placement.assignment import Placement, initial_placement
from queryable_app.platform.processes import free_ports
from queryable_app.serve.node import Node
from queryable_app.wire.disk_format import ReplicaState, Row, encode_row
from queryable_app.wire.partitioners import partition_for
from tests.support.node import APPLICATION_ID, node_settings
from tests.support.waiting import eventually

NODES = 3
PARTITIONS = 6
KEYS = [f"key-{number}" for number in range(120)]
DRAIN_SECONDS = 3
PAUSE_SECONDS = 0.02


class Process:
    """One node's serve, started again and again."""

    def __init__(self, settings: NodeSettings) -> None:
        self.settings = settings
        self.url = settings.advertised_url
        self.log = Path(settings.data_dir).parent / "serve.log"
        self.start()

    def start(self) -> None:
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "queryable_app.serve"],
                env={**os.environ, **self.settings.to_env()},
                stderr=log,
            )

    def wait_until_ready(self) -> None:
        eventually("the node is ready", self._is_ready, 30, story=self.log.read_text)

    def _is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/readyz").status_code == 200
        except httpx.TransportError:
            assert self.process.poll() is None, self.log.read_text()
            return False

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]


@contextmanager
def running(directory: Path, nodes: int = NODES, replicas: int = 2) -> Iterator[list[Process]]:
    """Start nodes that have every key, each partition on `replicas` of them."""
    (directory / "token").write_text("between-nodes")
    ports = free_ports(nodes)
    addresses = [f"http://127.0.0.1:{port}" for port in ports]
    placement = initial_placement(APPLICATION_ID, PARTITIONS, addresses, replicas)
    with ExitStack() as stack:
        started = []
        for ordinal, port in enumerate(ports):
            settings = filled(directory / str(ordinal), placement, ordinal, port, directory / "token")
            started.append(Process(settings))
            stack.callback(started[-1].process.kill)
        for process in started:
            process.wait_until_ready()
        try:
            yield started
        finally:
            for process in started:
                process.process.kill()
                process.process.wait(10)


def filled(directory: Path, placement: Placement, ordinal: int, port: int, token: Path) -> NodeSettings:
    directory.mkdir()
    settings = replace(
        node_settings(directory),
        name=f"users-r1-{ordinal}",
        ordinal=ordinal,
        advertised_url=placement.addresses[ordinal],
        http_host="127.0.0.1",
        http_port=port,
        internal_token_path=str(token),
        drain_seconds=DRAIN_SECONDS,
    )
    Path(settings.placement_path).write_text(placement.to_json())
    node = Node.open(settings)
    for partition, replica in node.replicas.by_partition.items():
        keys = [
            key.encode() for key in KEYS if partition_for(key.encode(), "murmur2", PARTITIONS) == partition
        ]
        rows = [(key, encode_row(Row(offset, 1, 0, b'"%b"' % key))) for offset, key in enumerate(keys)]
        replica.apply(rows, ReplicaState(len(rows), True, len(rows)))
    node.replicas.close()
    return settings


class Service:
    """Route new connections to a node, and record what clients receive."""

    def __init__(self, processes: list[Process]) -> None:
        self._behind = list(processes)
        self._lock = threading.Lock()
        self._changed = threading.Condition()
        self._ended = threading.Event()
        self.answered = 0
        self.closes = 0  # answers with `Connection: close`
        self.lost: list[str] = []

    def remove(self, process: Process) -> None:
        with self._lock:
            self._behind.remove(process)

    def add(self, process: Process) -> None:
        with self._lock:
            self._behind.append(process)

    def wait_for_a_close(self, closes: int, seconds: float) -> None:
        """Wait for one more answer with `Connection: close`, for at most some seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self.closes > closes, seconds)

    @contextmanager
    def clients(self, kept_alive: int, new: int) -> Iterator[None]:
        threads = [
            threading.Thread(target=self._read, args=(number < kept_alive,))
            for number in range(kept_alive + new)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._ended.set()
            for thread in threads:
                thread.join(30)

    def _read(self, keep_alive: bool) -> None:
        """One request after the other, none of them tried again: whatever is not answered rightly is lost."""
        connection: http.client.HTTPConnection | None = None
        while not self._ended.wait(PAUSE_SECONDS):
            key = random.choice(KEYS)
            try:
                if connection is None:
                    connection = self._connect()
                if random.random() < 0.8:
                    connection.request("GET", f"/v1/keys/{key}")
                else:
                    connection.request("POST", "/v1/multi-get", json.dumps({"keys": [key]}))
                response = connection.getresponse()
                body, closes = response.read(), response.will_close
                if response.status != 200 or f'"{key}"'.encode() not in body:
                    self.lost.append(f"{response.status} {body!r}")
            except (OSError, http.client.HTTPException) as error:
                self.lost.append(repr(error))
                closes = True
            with self._changed:
                self.answered += 1
                self.closes += closes
                self._changed.notify_all()
            if connection is not None and (closes or not keep_alive):
                connection.close()
                connection = None
        if connection is not None:
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        with self._lock:
            settings = random.choice(self._behind).settings
        connection = http.client.HTTPConnection(settings.http_host, settings.http_port, timeout=20)
        connection.connect()
        return connection


@pytest.mark.timeout(120)
def test_rolling_restart_loses_no_request(tmp_path: Path) -> None:
    """Clients with kept and with new connections lose no request while the nodes restart one after the other."""
    with running(tmp_path) as processes:
        service = Service(processes)
        with service.clients(kept_alive=4, new=2):
            for process in processes:
                closes = service.closes
                process.process.send_signal(signal.SIGTERM)
                service.wait_for_a_close(
                    closes, DRAIN_SECONDS / 2
                )  # a Service still sends requests until then
                service.remove(process)
                assert process.process.wait(30) == 0
                process.start()
                process.wait_until_ready()
                service.add(process)

        assert service.lost == []
        assert service.answered > 100
        assert service.closes >= NODES
        for process in processes:
            names = [event["event"] for event in process.events()]
            assert names.count("draining") == 1
            assert "stopped" in names


def test_draining_node_still_answers(tmp_path: Path) -> None:
    """A draining node answers everything with `Connection: close`, and reports the drain to probes, status and peers."""
    with running(tmp_path, nodes=2) as (first, second):
        with httpx.Client(base_url=first.url) as http:
            assert "connection" not in http.get(f"/v1/keys/{KEYS[0]}").headers
            first.process.send_signal(signal.SIGTERM)
            eventually("the node drains", lambda: http.get("/v1/status").json()["draining"], DRAIN_SECONDS)

            ready = http.get("/readyz")
            assert (ready.status_code, ready.json()["ready"], ready.json()["draining"]) == (503, False, True)
            for answer in (
                http.get(f"/v1/keys/{KEYS[0]}"),
                http.get(f"/v1/keys/{KEYS[0]}", params={"consistency": "any"}),
                http.get("/v1/scan", params={"limit": "5"}),
                http.post("/v1/multi-get", json={"keys": KEYS}),
                http.get("/livez"),
            ):
                assert (answer.status_code, answer.headers["connection"]) == (200, "close")
            assert http.get("/v1/keys/none").status_code == 404

            def draining_peer() -> Any:
                (peer,) = httpx.get(f"{second.url}/v1/status").json()["peers"]
                return peer if peer["draining"] else None

            peer = eventually("the other node knows of the drain", draining_peer, DRAIN_SECONDS)
            assert not peer["suspect"]
        assert first.process.wait(20) == 0


def test_second_signal_ends_a_node_at_once(tmp_path: Path) -> None:
    """A second end signal stops a node that drains."""
    with running(tmp_path, nodes=1, replicas=1) as (only,):
        only.settings = replace(only.settings, drain_seconds=600)
        only.process.send_signal(signal.SIGTERM)
        only.process.wait(30)
        only.start()
        only.wait_until_ready()
        only.process.send_signal(signal.SIGTERM)
        eventually("it drains", lambda: httpx.get(f"{only.url}/v1/status").json()["draining"], 20)
        only.process.send_signal(signal.SIGTERM)
        assert only.process.wait(30) == 0
