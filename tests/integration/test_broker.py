"""Test a broker that is unreachable: at start, during a run, and after SIGKILL."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration import topics
from tests.integration.system import resource, running
from tests.support.kafka import KafkaForTests, embedded_kafka
from tests.support.waiting import eventually


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[KafkaForTests]:
    """Yield a broker of the test's own, since the test harms it."""
    with embedded_kafka(tmp_path / "broker") as started:
        yield started


def test_reads_continue_without_the_broker(broker: KafkaForTests, tmp_path: Path) -> None:
    """After SIGKILL of the broker every read is answered, the lag grows, and strong reads are refused until it returns."""
    topics.create(broker.bootstrap, "away", 2)
    topics.produce(broker.bootstrap, "away", [(f"k-{n}".encode(), b"1") for n in range(100)])
    with running(resource("away", broker.bootstrap, read={"ingest": True}), tmp_path / "run") as system:
        assert system.value("k-7") == 1
        broker.kill()
        killed_at = time.monotonic()
        while time.monotonic() < killed_at + 12:
            answer = system.get("/v1/keys/k-7")
            assert answer.status_code == 200
            time.sleep(0.1)  # the pace of the reads, not a synchronisation
        assert int(answer.headers["qt-lag-ms"]) > 5000
        assert system.get("/v1/keys/k-7?max-lag-ms=1000").json()["reason"] == "not_fresh_enough"
        assert system.get("/v1/keys/k-7?consistency=strong&deadline-ms=2000").json()["reason"] in {
            "not_fresh_enough",
            "deadline_exceeded",
        }
        wrote = system.post("/v1/records?deadline-ms=1000", json={"key": "k", "value": 1})
        assert wrote.json()["reason"] in {"not_available", "deadline_exceeded"}

        broker.start()
        topics.produce(broker.bootstrap, "away", [(b"after", b"2")])
        eventually("rows arrive again", lambda: system.value("after") == 2, 90)
        eventually(
            "the lag is below 2 s again",
            lambda: int(system.get("/v1/keys/after").headers["qt-lag-ms"]) < 2000,
            60,
        )


def test_node_starts_without_the_broker(broker: KafkaForTests, tmp_path: Path) -> None:
    """A node that starts without a broker answers from its disk, and catches up when the broker is reachable."""
    topics.create(broker.bootstrap, "cold", 2)
    topics.produce(broker.bootstrap, "cold", [(b"k", b"1")])
    document = resource("cold", broker.bootstrap)
    with running(document, tmp_path / "run") as system:
        assert system.value("k") == 1
    broker.kill()
    with running(document, tmp_path / "run", wait=False) as system:
        eventually("run.json", lambda: (system.data / "run.json").exists(), 120)
        eventually("the node answers", lambda: system.value("k") == 1)
        broker.start()
        topics.produce(broker.bootstrap, "cold", [(b"k", b"2")])
        eventually("the node has caught up", lambda: system.value("k") == 2, 120)
