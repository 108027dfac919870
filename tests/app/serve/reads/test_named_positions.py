"""Reads that name a position: it is reached before an answer says anything, in whatever partition it is."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from queryable_app.wire.partitioners import Partitioning, partition_for
from tests.support.served import Served, served
from tests.support.three_nodes import TOKEN, Cluster
from tests.support.waiting import eventually

KEY = "key-1"
"""Every partitioner puts it in a partition of its own, on a node of its own."""
ASSUMED, CRC32, WRITTEN = (partition_for(KEY.encode(), name, 6) for name in ("murmur2", "crc32", "fnv1a"))


def hosts(cluster: Cluster, partition: int) -> int:
    return cluster.placement.serving[partition][0]


def forget_mismatches(node: Served) -> None:
    """As in the first moments of a view: the node has no record that contradicts murmur2, and heard of none."""
    replicas = node.node.replicas

    def forget() -> None:
        replicas.partitioner.mismatched = frozenset()
        replicas.partitioner.partitioning = Partitioning("murmur2", 6)

    node.on_loop(forget)


def waits(node: Served, partition: int) -> bool:
    """Whether a read waits for the replica of the partition."""
    return bool(node.node.replicas.by_partition[partition]._waiting)


def read(http: httpx.Client, kind: str, options: str) -> Any:
    """The value of KEY; None when the answer says that it is not there."""
    if kind == "point":
        answer = http.get(f"/v1/keys/{KEY}?{options}")
        assert answer.status_code in (200, 404), answer.text
        return answer.json() if answer.status_code == 200 else None
    answer = http.post(f"/v1/multi-get?{options}", json={"keys": [KEY]})
    assert answer.status_code == 200, answer.text
    return answer.json()["items"][0].get("value")


@pytest.mark.parametrize("kind", ["point", "multi-get"])
@pytest.mark.parametrize("caller", [ASSUMED, CRC32, WRITTEN], ids=["looks here", "looks elsewhere", "has it"])
def test_named_position_elsewhere_is_held(tmp_path: Path, caller: int, kind: str) -> None:
    """A key that an FNV-1a producer wrote is found by its position while the nodes still assume murmur2."""
    with Cluster(tmp_path, 1) as cluster:
        cluster.put(KEY.encode(), b"1", partition=WRITTEN)
        asked = hosts(cluster, caller)
        for ordinal, node in enumerate(cluster.nodes):
            eventually("it knows", lambda n=node: n.node.replicas.partitioning.algorithm == "fnv1a")  # type: ignore[misc]
            if ordinal != hosts(cluster, WRITTEN):
                forget_mismatches(node)
        with cluster.nodes[asked].client() as http:
            assert read(http, kind, f"min-position={WRITTEN}:1") == 1


@pytest.mark.parametrize("kind", ["point", "multi-get"])
@pytest.mark.parametrize("caller", [ASSUMED, WRITTEN], ids=["another node", "this node"])
def test_named_position_elsewhere_is_waited_for(tmp_path: Path, caller: int, kind: str) -> None:
    """The read waits at the node that hosts the named partition, and then looks for the key where it is."""
    with Cluster(tmp_path, 1) as cluster:
        asked, owner = cluster.nodes[hosts(cluster, caller)], cluster.nodes[hosts(cluster, WRITTEN)]
        values: list[Any] = []

        def reading() -> None:
            with asked.client() as http:
                values.append(read(http, kind, f"min-position={WRITTEN}:1&deadline-ms=30000"))

        thread = threading.Thread(target=reading)
        thread.start()
        eventually("it waits", lambda: waits(owner, WRITTEN) or values)
        cluster.put(KEY.encode(), b"1", partition=WRITTEN)
        thread.join()
    assert values == [1]


@pytest.mark.parametrize("kind", ["point", "multi-get", "scan", "count"])
def test_named_position_that_is_not_reached_is_said(tmp_path: Path, kind: str) -> None:
    """503 not_fresh_enough, with the partition and by how much, for every kind of read."""
    with Cluster(tmp_path, 1) as cluster, cluster.nodes[hosts(cluster, WRITTEN)].client() as http:
        options = f"min-position={WRITTEN}:7&deadline-ms=2000"
        match kind:
            case "point":
                answer = http.get(f"/v1/keys/{KEY}?{options}")
            case "multi-get":
                answer = http.post(f"/v1/multi-get?{options}", json={"keys": []})
            case _:
                answer = http.get(f"/v1/{kind}?{options}")
        problem = answer.json()
        assert (answer.status_code, problem["reason"]) == (503, "not_fresh_enough")
        assert f"7 records short of the position {WRITTEN}:7" in problem["detail"]
        assert problem["missing"] == [WRITTEN]
        assert ("partial=allow" in problem["advice"]) is (kind != "point")


def test_every_named_position_is_held(tmp_path: Path) -> None:
    """One that is reached does not stand for another one that is not."""
    with Cluster(tmp_path, 1) as cluster, cluster.nodes[hosts(cluster, WRITTEN)].client() as http:
        cluster.put(b"a", b"1", partition=CRC32)
        refused = http.get(f"/v1/keys/{KEY}?min-position={CRC32}:1,{WRITTEN}:1&deadline-ms=2000")
        assert (refused.json()["reason"], refused.json()["missing"]) == ("not_fresh_enough", [WRITTEN])


def test_a_part_of_a_multi_get_finds_nothing_absent_while_a_position_is_not_reached(tmp_path: Path) -> None:
    """With partial=allow a key that was not found is null, since it may be in the partition of that position."""
    with Cluster(tmp_path, 1) as cluster, cluster.nodes[hosts(cluster, WRITTEN)].client() as http:
        options = f"min-position={WRITTEN}:1&deadline-ms=2000&partial=allow"
        answer = http.post(f"/v1/multi-get?{options}", json={"keys": [KEY]}).json()
    assert (answer["missing"], answer["items"][0]["found"]) == ([WRITTEN], None)


def test_named_position_is_not_left_to_chance_by_route_local(tmp_path: Path) -> None:
    """A node that may ask no other one refuses a position in a partition that it does not host."""
    with Cluster(tmp_path, 1) as cluster, cluster.nodes[hosts(cluster, ASSUMED)].client() as http:
        refused = http.get(f"/v1/keys/{KEY}?min-position={WRITTEN}:1&route=local")
        assert (refused.status_code, refused.json()["partition"]) == (421, WRITTEN)
        forwarded = http.get(
            f"/v1/keys/{KEY}?min-position={WRITTEN}:1",
            headers={"qt-forwarded": TOKEN, "qt-deadline-ms": "10000"},
        )
        assert (forwarded.status_code, forwarded.json()["partition"]) == (421, WRITTEN)


def test_positions_that_are_reached_cost_no_waiting(tmp_path: Path) -> None:
    """An absent key is answered as of every named position, and of its own partition."""
    with Cluster(tmp_path, 1) as cluster, cluster.nodes[hosts(cluster, ASSUMED)].client() as http:
        cluster.put(b"other", b"1")
        where = partition_for(b"other", "murmur2", 6)
        answer = http.get(f"/v1/keys/{KEY}?min-position={where}:1")
        assert (answer.status_code, answer.json()["reason"]) == (404, "key_not_found")
        stated = dict(pair.split(":") for pair in answer.headers["qt-position"].split(","))
        assert stated == {str(where): "1", str(ASSUMED): "0"}


def test_a_strong_read_follows_a_partitioner_that_changes_while_it_waits(tmp_path: Path) -> None:
    """It learns the end of the partition in which the key is looked for from then on."""
    with served(tmp_path, partitions=6) as node:
        asked: list[set[int]] = []

        async def latest(partitions: list[int]) -> dict[int, int]:
            asked.append({*partitions})
            node.node.replicas.partitioner.note_mismatched(frozenset({"murmur2", "crc32"}))
            return {partition: 0 for partition in partitions}

        node.node.end_offsets.latest = latest  # type: ignore[method-assign, assignment]
        with node.client() as http:
            assert http.get(f"/v1/keys/{KEY}?consistency=strong").json()["reason"] == "key_not_found"
    assert asked == [{ASSUMED}, {WRITTEN}]
