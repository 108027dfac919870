"""Test that each of three nodes, with one standby replica per partition, answers every key, and takes every write."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from queryable_app.client import QueryableTopic
from tests.integration import topics
from tests.integration.system import System, resource, running

VALUES = {f"key-{n}": n for n in range(300)}


@pytest.fixture(scope="module")
def system(kafka: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    topics.create(kafka.bootstrap, "three", 6)
    topics.produce(kafka.bootstrap, "three", topics.json_records(VALUES))
    document = resource("three", kafka.bootstrap, replicas=3, standbyReplicas=1, read={"ingest": True})
    with running(document, tmp_path_factory.mktemp("nodes"), nodes=3) as started:
        yield started


@pytest.mark.parametrize("node", [0, 1, 2])
def test_every_node_answers_every_key(system: System, node: int) -> None:
    """A node answers a key that another node hosts with one hop."""
    answers = {key: system.get(f"/v1/keys/{key}", node) for key in VALUES}

    assert {key: a.json() for key, a in answers.items()} == VALUES
    assert {a.headers["qt-hops"] for a in answers.values()} == {"0", "1"}


@pytest.mark.parametrize("node", [0, 1, 2])
def test_reads_over_all_partitions_are_complete_on_every_node(system: System, node: int) -> None:
    """A node completes scan, multi-get and count with the rows that other nodes host."""
    assert {i["key"]: i["value"] for i in system.items(node=node)} == VALUES
    assert system.get("/v1/count", node).json()["count"] == len(VALUES)
    keys = [*VALUES, "missing", "key-1"]
    items = system.post("/v1/multi-get", node, json={"keys": keys}).json()["items"]
    assert [i["key"] for i in items] == keys
    assert [i["found"] for i in items] == [*(True for _ in VALUES), False, True]


def test_missing_key_is_missing_on_every_node(system: System) -> None:
    """Every node answers key_not_found, with the position as of which the key is absent."""
    answers = [system.get("/v1/keys/missing", node) for node in range(3)]

    assert {a.status_code for a in answers} == {404}
    assert {a.json()["reason"] for a in answers} == {"key_not_found"}
    assert len({(a.json()["partition"], a.json()["position"]) for a in answers}) == 1


def test_write_that_is_repeated_at_other_nodes_is_in_the_topic_once(kafka: Any, system: System) -> None:
    """Three nodes that get the same requests at the same time write one record for each, and answer its position."""
    before = Counter(record.key for record in topics.records(kafka.bootstrap, "three"))
    keys = [f"key-{n}" for n in range(30)]

    def write(node: int) -> list[Any]:
        return [
            system.http.post(
                system.url(node) + "/v1/records?deadline-ms=15000",
                json={"key": key, "value": VALUES[key]},
                headers={"idempotency-key": f"once-{key}"},
            ).json()
            for key in keys
        ]

    with ThreadPoolExecutor(3) as threads:
        first, *others = threads.map(write, range(3))

    assert others == [first, first]
    written = Counter(record.key for record in topics.records(kafka.bootstrap, "three")) - before
    assert written == Counter(key.encode() for key in keys)


def test_client_repeats_writes_while_a_node_is_killed(kafka: Any, system: System) -> None:
    """With idempotency keys no write fails or has an unknown result, and every record is in the topic."""
    before = Counter(record.key for record in topics.records(kafka.bootstrap, "three"))
    with QueryableTopic([system.url(node) for node in range(3)]) as client:
        for number, (key, value) in enumerate(VALUES.items()):
            if number == 50:
                os.kill(system.pid("serve", 1), signal.SIGKILL)
            client.put(key, value, idempotency_key=f"kept-{key}", deadline_ms=30_000)
    written = Counter(record.key for record in topics.records(kafka.bootstrap, "three")) - before
    assert written.keys() == {key.encode() for key in VALUES}
    system.wait_ready(nodes=3, seconds=180)
