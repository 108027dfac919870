"""Test that three nodes become five and then two, and standby replicas change, under reads and writes."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration import topics
from tests.integration.system import System, resource, running, with_deadline
from tests.support.fold import fold
from tests.support.threads import running_thread
from tests.support.waiting import eventually

TOPIC, PARTITIONS, SEED = "scaled", 6, 20261121
READS_OF_A_CHANGE = 250  # during each change, and right after it on a slow machine
STILL = {f"still-{n}": n for n in range(200)}  # no producer writes these any more: each has one right answer


class Readers:
    """Send bounded reads through every node in `run.json`, one after the other; `failed` has the failures."""

    def __init__(self, system: System) -> None:
        self._system = system
        self.took_ms: list[float] = []
        self.failed: list[str] = []

    def _read(self, stop: threading.Event) -> None:
        with httpx.Client(timeout=40) as http:
            for number, (key, value) in enumerate(itertools.cycle(STILL.items())):
                if stop.wait(0.005):
                    return
                nodes = self._system.described()["nodes"]
                node = nodes[number % len(nodes)]
                began = time.monotonic()
                try:
                    answer = http.get(node["url"] + with_deadline(f"/v1/keys/{key}"))
                    if (answer.status_code, answer.text) != (200, str(value)):
                        self.failed.append(f"{key} from {node['name']}: {answer.status_code} {answer.text}")
                except httpx.HTTPError as error:
                    self.failed.append(f"{key} from {node['name']}: {error!r}")
                self.took_ms.append(1000 * (time.monotonic() - began))

    def wait_for(self, reads: int) -> None:
        eventually(f"{reads} reads have ended", lambda: len(self.took_ms) >= reads, 60)

    def latency(self) -> str:
        ordered = sorted(self.took_ms)
        p50, p99 = (ordered[int(len(ordered) * part)] for part in (0.5, 0.99))
        return f"{len(ordered)} reads: p50 {p50:.1f} ms, p99 {p99:.1f} ms, max {ordered[-1]:.1f} ms"

    def reading(self) -> AbstractContextManager[None]:
        return running_thread(self._read)


def churning(bootstrap: str) -> AbstractContextManager[None]:
    return running_thread(lambda stop: topics.churn(bootstrap, TOPIC, stop, SEED))


def change(system: System, command: str, number: int) -> dict[str, Any]:
    """Run `qtopic scale` or `qtopic standby`, and wait until the placement is settled."""
    arguments = [command, str(number), "--data", str(system.data), "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "queryable_app.cli", *arguments], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, f"{done.stderr}\n{system.tail()}"
    result: dict[str, Any] = json.loads(done.stdout)
    assert result["settled"]
    return result


def replicas_of_nodes(system: System) -> list[int]:
    return [len(system.status(node)["partitions"]) for node in range(len(system.described()["nodes"]))]


@pytest.mark.timeout(900)
def test_no_read_fails_while_nodes_and_replicas_change(kafka: Any, tmp_path: Path) -> None:
    """No read fails while nodes and replicas change, and at the end every node answers the fold of the topic."""
    topics.create(kafka.bootstrap, TOPIC, PARTITIONS)
    topics.produce(kafka.bootstrap, TOPIC, topics.json_records(STILL))
    document = resource(TOPIC, kafka.bootstrap, replicas=3, standbyReplicas=1)
    with running(document, tmp_path, nodes=3) as system:
        readers = Readers(system)
        with churning(kafka.bootstrap), readers.reading():
            epochs = []
            for command, number, nodes, replicas in (
                ("scale", 5, 5, 2),
                ("scale", 2, 2, 2),
                ("standby", 0, 2, 1),
                ("standby", 1, 2, 2),
            ):
                enough = len(readers.took_ms) + READS_OF_A_CHANGE
                epochs.append(change(system, command, number)["epoch"])
                counts = replicas_of_nodes(system)
                assert (len(counts), sum(counts)) == (nodes, PARTITIONS * replicas)
                assert max(counts) - min(counts) <= 1
                readers.wait_for(enough)
                assert readers.failed == [], system.tail()
        print(readers.latency())
        assert readers.failed == []
        assert epochs == sorted(set(epochs))
        assert {p.name for p in (system.data / "nodes").iterdir()} == {"0", "1"}

        ends = topics.ends(kafka.bootstrap, TOPIC)
        system.at_end(ends)
        folded = fold(topics.records(kafka.bootstrap, TOPIC))
        expected = {k.decode(): json.loads(row.value) for k, row in folded.items() if row.value is not None}
        for node in range(2):
            assert {item["key"]: item["value"] for item in system.items(node=node)} == expected


@pytest.mark.timeout(600)
def test_restarted_run_moves_replicas_instead_of_rebuilding(kafka: Any, tmp_path: Path) -> None:
    """A run with another number of nodes over the same directory moves replicas and does not rebuild all of them."""
    topic = "kept_copies"
    topics.create(kafka.bootstrap, topic, PARTITIONS)
    topics.produce(kafka.bootstrap, topic, topics.json_records(STILL))
    with running(resource(topic, kafka.bootstrap), tmp_path, nodes=2) as system:
        before = [system.partition(p, p % 2)["position"] for p in range(PARTITIONS)]

    with running(resource(topic, kafka.bootstrap), tmp_path, nodes=1) as system:
        eventually("the placement is settled", lambda: system.described()["placement"]["settled"], 120)

        assert len(system.described()["nodes"]) == 1
        assert [system.partition(p)["position"] for p in range(PARTITIONS)] == before
        assert {item["key"]: item["value"] for item in system.items()} == STILL
