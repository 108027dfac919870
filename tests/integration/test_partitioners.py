"""Producers that do not agree on where a key belongs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integration import topics
from tests.integration.system import eventually, resource, running

KEYS = [f"key-{n}".encode() for n in range(200)]


@pytest.mark.parametrize(("name", "algorithm"), [("consistent_random", "crc32"), ("fnv1a_random", "fnv1a")])
def test_the_producers_partitioner_is_found_out(
    kafka: Any, tmp_path: Path, name: str, algorithm: str
) -> None:
    """A topic that librdkafka wrote is read by the hash that it used."""
    topic = f"by-{algorithm}"
    topics.create(kafka.bootstrap, topic, 6)
    topics.produce(kafka.bootstrap, topic, [(k, b"1") for k in KEYS], partitioner=name)
    with running(resource(topic, kafka.bootstrap), tmp_path) as system:
        assert system.get("/v1/placement").json()["partitioner"] == algorithm
        assert all(system.value(k.decode()) == 1 for k in KEYS)


def test_a_key_in_several_partitions_answers_with_its_newest_record(kafka: Any, tmp_path: Path) -> None:
    """Mixed producers: the newest record wins wherever it is, a tombstone too, and the mismatch is visible."""
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


def test_a_declared_partitioner_that_is_wrong_hides_nothing(kafka: Any, tmp_path: Path) -> None:
    """Rows that contradict the declared partitioner are found all the same."""
    topic = "declared"
    topics.create(kafka.bootstrap, topic, 6)
    topics.produce(kafka.bootstrap, topic, [(k, b"1") for k in KEYS], partitioner="consistent_random")
    with running(resource(topic, kafka.bootstrap, partitioner="murmur2"), tmp_path) as system:
        assert all(system.value(k.decode()) == 1 for k in KEYS)
        eventually("a log line", lambda: "partitioner" in system.node_logs())
