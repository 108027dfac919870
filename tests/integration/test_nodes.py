"""Test that each of three nodes, with one standby replica per partition, answers every key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration import topics
from tests.integration.system import System, resource, running

VALUES = {f"key-{n}": n for n in range(300)}


@pytest.fixture(scope="module")
def system(kafka: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    topics.create(kafka.bootstrap, "three", 6)
    topics.produce(kafka.bootstrap, "three", topics.json_records(VALUES))
    document = resource("three", kafka.bootstrap, replicas=3, standbyReplicas=1)
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
    items = system.http.post(system.url(node) + "/v1/multi-get", json={"keys": keys}).json()["items"]
    assert [i["key"] for i in items] == keys
    assert [i["found"] for i in items] == [*(True for _ in VALUES), False, True]


def test_missing_key_is_missing_on_every_node(system: System) -> None:
    """Every node answers key_not_found, with the position as of which the key is absent."""
    answers = [system.get("/v1/keys/missing", node) for node in range(3)]

    assert {a.status_code for a in answers} == {404}
    assert {a.json()["reason"] for a in answers} == {"key_not_found"}
    assert len({(a.json()["partition"], a.json()["position"]) for a in answers}) == 1
