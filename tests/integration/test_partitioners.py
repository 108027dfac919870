"""Test that nodes find keys for all partitioners that producers use."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.integration import topics
from tests.integration.system import resource, running
from tests.support.waiting import eventually

KEYS = [f"key-{n}".encode() for n in range(200)]


@pytest.mark.parametrize(("name", "algorithm"), [("consistent_random", "crc32"), ("fnv1a_random", "fnv1a")])
def test_partitioner_of_the_producer_is_detected(
    kafka: Any, tmp_path: Path, name: str, algorithm: str
) -> None:
    """Nodes look for keys by the hash that librdkafka used."""
    topic = f"by-{algorithm}"
    topics.create(kafka.bootstrap, topic, 6)
    topics.produce(kafka.bootstrap, topic, [(k, b"1") for k in KEYS], partitioner=name)
    with running(resource(topic, kafka.bootstrap), tmp_path) as system:
        assert system.get("/v1/placement").json()["partitioner"] == algorithm
        assert all(system.value(k.decode()) == 1 for k in KEYS)


def test_position_is_respected_before_the_first_partitioner_mismatch(kafka: Any, tmp_path: Path) -> None:
    """The first keys of an FNV-1a producer are read by their positions, through either node, before ingest has any record."""
    topic = "first-moments"
    topics.create(kafka.bootstrap, topic, 6)
    with (
        running(resource(topic, kafka.bootstrap), tmp_path, nodes=2) as system,
        ThreadPoolExecutor(40) as pool,
    ):
        ingests = [system.pid("ingest", node) for node in range(2)]
        for pid in ingests:
            os.killpg(pid, signal.SIGSTOP)
        try:
            positions: dict[bytes, str] = {}
            client = topics.producer(kafka.bootstrap, partitioner="fnv1a_random")
            for key in KEYS[:40]:
                client.produce(
                    topic,
                    key=key,
                    value=b"1",
                    on_delivery=lambda _, message: positions.update(
                        {message.key(): f"{message.partition()}:{message.offset() + 1}"}
                    ),
                )
            assert client.flush(60) == 0
            reads = [
                pool.submit(
                    system.get,
                    f"/v1/keys/{key.decode()}?min-position={position}&deadline-ms=60000",
                    number % 2,
                    timeout=70,
                )
                for number, (key, position) in enumerate(positions.items())
            ]
            eventually(
                "reads wait",
                lambda: all(_in_flight(system, node) > 5 for node in range(2)) or reads[0].done(),
            )
        finally:
            for pid in ingests:
                os.killpg(pid, signal.SIGCONT)
        assert [read.result().status_code for read in reads] == [200] * 40


def _in_flight(system: Any, node: int) -> float:
    lines = system.get("/metrics", node).text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("qt_requests_in_flight "))


def test_key_in_several_partitions_answers_with_its_newest_record(kafka: Any, tmp_path: Path) -> None:
    """With mixed producers the newest record wins wherever it is, a tombstone too, and the mismatch is visible."""
    topic = "mixed"
    topics.create(kafka.bootstrap, topic, 6)
    topics.produce(kafka.bootstrap, topic, [(k, b'"java"') for k in KEYS])
    with running(resource(topic, kafka.bootstrap), tmp_path) as system:
        assert all(system.value(k.decode()) == "java" for k in KEYS)

        topics.produce(
            kafka.bootstrap, topic, [(k, b'"librdkafka"') for k in KEYS], partitioner="consistent_random"
        )
        system.at_end(topics.ends(kafka.bootstrap, topic))
        assert all(system.value(k.decode()) == "librdkafka" for k in KEYS)
        assert system.get("/v1/count").json()["count"] == len(KEYS)
        assert {item["key"]: item["value"] for item in system.items()} == {
            k.decode(): "librdkafka" for k in KEYS
        }

        topics.produce(kafka.bootstrap, topic, [(k, None) for k in KEYS[:100]])
        system.at_end(topics.ends(kafka.bootstrap, topic))
        assert all(system.value(k.decode()) is None for k in KEYS[:100])
        assert {item["key"] for item in system.items()} == {k.decode() for k in KEYS[100:]}

        assert system.get("/v1/placement").json()["partitioner"] == "scatter"
        assert "qt_partitioner_mismatches_total" in system.get("/metrics").text


def test_wrong_declared_partitioner_hides_nothing(kafka: Any, tmp_path: Path) -> None:
    """Reads find the rows that do not follow the declared partitioner, and the node logs the mismatch."""
    topic = "declared"
    topics.create(kafka.bootstrap, topic, 6)
    topics.produce(kafka.bootstrap, topic, [(k, b"1") for k in KEYS], partitioner="consistent_random")
    with running(resource(topic, kafka.bootstrap, partitioner="murmur2"), tmp_path) as system:
        assert all(system.value(k.decode()) == 1 for k in KEYS)
        eventually("a log line", lambda: "partitioner" in system.node_logs())
