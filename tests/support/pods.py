"""Run real pods: the parent of each, and its workers, with stores that have every key. There is no Kafka and no ingest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx

from queryable_app.contract import NodeSettings, worker_settings
from queryable_app.placement.assignment import initial_placement
from queryable_app.platform.processes import free_ports
from queryable_app.serve.node import Node
from queryable_app.wire.disk_format import ReplicaState, Row, encode_row
from queryable_app.wire.partitioners import partition_for
from tests.support.node import APPLICATION_ID, node_settings
from tests.support.processes import worker_pids
from tests.support.waiting import eventually

PARTITIONS = 8
KEYS = [f"key-{number}" for number in range(120)]
PARENT = ("-m", "queryable_app.serve")


def get(url: str, **options: Any) -> httpx.Response:
    """Send a request on a new connection. To load the trusted certificates for each one would take most of its time."""
    return httpx.get(url, verify=False, **{"timeout": 30, **options})


class PodProcess:
    """One pod's serve: a parent and its workers."""

    def __init__(self, settings: NodeSettings, command: Sequence[str], inherited: Sequence[int] = ()) -> None:
        self.settings = settings
        self.workers = worker_settings(settings)
        self.front = settings.advertised_url
        self.log = Path(settings.data_dir).parent / "serve.log"
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, *command],
                env={**os.environ, **settings.to_env()},
                stderr=log,
                pass_fds=tuple(inherited),
            )

    def pids(self) -> dict[int, int]:
        """Return the process id of each worker by its ordinal, of those that run now."""
        return worker_pids(self.process.pid)

    def is_ready(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            return all(get(f"{worker.advertised_url}/readyz").status_code == 200 for worker in self.workers)
        except httpx.TransportError:
            return False

    def wait_until_ready(self) -> None:
        eventually("the workers are ready", self.is_ready, 40, story=self.log.read_text)

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == name]


def partition_of(key: str) -> int:
    return partition_for(key.encode(), "murmur2", PARTITIONS)


@contextmanager
def running_pods(
    directory: Path,
    pods: int = 1,
    workers: int = 2,
    replicas: int = 1,
    command: Sequence[str] = PARENT,
    drain_seconds: int = 0,
) -> Iterator[list[PodProcess]]:
    """Start pods whose workers have all keys, each partition in `replicas` pods."""
    (directory / "token").write_text("between-nodes")
    ports = free_ports(pods * (workers + 1))
    fronts, own = ports[:pods], ports[pods:]
    placement = initial_placement(
        APPLICATION_ID,
        PARTITIONS,
        [f"http://127.0.0.1:{port}" for port in own],
        replicas,
        [str(node // workers) for node in range(pods * workers)],
    )
    with ExitStack() as stack:
        started = []
        for ordinal, front in enumerate(fronts):
            home = directory / str(ordinal)
            home.mkdir()
            settings = replace(
                node_settings(home),
                name=f"users-r1-{ordinal}",
                ordinal=ordinal,
                advertised_url=f"http://127.0.0.1:{front}",
                http_host="127.0.0.1",
                http_port=front,
                worker_ports=",".join(map(str, own[ordinal * workers :][:workers])),
                internal_token_path=str(directory / "token"),
                drain_seconds=drain_seconds,
            )
            Path(settings.placement_path).write_text(placement.to_json())
            for worker in worker_settings(settings):
                _fill(worker)
            started.append(PodProcess(settings, command))
            stack.callback(started[-1].process.wait, 10)
            stack.callback(started[-1].process.kill)
        for pod in started:
            pod.wait_until_ready()
        yield started


def _fill(settings: NodeSettings) -> None:
    node = Node.open(settings)
    for partition, replica in node.replicas.by_partition.items():
        keys = [key.encode() for key in KEYS if partition_of(key) == partition]
        rows = [(key, encode_row(Row(offset, 1, 0, b'"%b"' % key))) for offset, key in enumerate(keys)]
        replica.apply(rows, ReplicaState(len(rows), True, len(rows)))
    node.replicas.close()
