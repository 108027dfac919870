"""A read that names a position waits until it is reached, in whatever partition it is."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from queryable_app.wire.partitioners import Partitioning, partition_for
from tests.support.node_cluster import TOKEN, NodeCluster, three_nodes
from tests.support.served import Served, served
from tests.support.waiting import eventually

KEY = "key-1"
"""Each partitioner puts it in a different partition, and each of these is on a different node."""
ASSUMED, CRC32, WRITTEN = (partition_for(KEY.encode(), name, 6) for name in ("murmur2", "crc32", "fnv1a"))


def hosts(cluster: NodeCluster, partition: int) -> int:
    return cluster.placement.serving[partition][0]


def forget_mismatches(node: Served) -> None:
    """Put the node back into the first moments of a view, when no mismatch of murmur2 is known."""
    replicas = node.node.replicas

    def forget() -> None:
        replicas.partitioner.mismatched = frozenset()
        replicas.partitioner.partitioning = Partitioning("murmur2", 6)

    node.on_loop(forget)


def waits(node: Served, partition: int) -> bool:
    """Return whether a read waits for the replica of the partition."""
    return bool(node.node.replicas.by_partition[partition].waiting)


def read(http: httpx.Client, kind: str, options: str) -> Any:
    """Return the value of KEY; None if the answer says that it is absent."""
    if kind == "point":
        answer = http.get(f"/v1/keys/{KEY}?{options}")
        assert answer.status_code in (200, 404), answer.text
        return answer.json() if answer.status_code == 200 else None
    answer = http.post(f"/v1/multi-get?{options}", json={"keys": [KEY]})
    assert answer.status_code == 200, answer.text
    return answer.json()["items"][0].get("value")


@pytest.mark.parametrize("kind", ["point", "multi-get"])
@pytest.mark.parametrize("caller", [ASSUMED, CRC32, WRITTEN], ids=["looks here", "looks elsewhere", "has it"])
def test_named_position_elsewhere_is_respected(tmp_path: Path, caller: int, kind: str) -> None:
    """A key of an FNV-1a producer is found by its position while the nodes still assume murmur2."""
    with three_nodes(tmp_path, 1) as cluster:
        cluster.put(KEY.encode(), b"1", partition=WRITTEN)
        eventually("every node notices the partitioner", lambda: cluster.algorithms() == {"fnv1a"})
        for ordinal, node in enumerate(cluster.nodes):
            if ordinal != hosts(cluster, WRITTEN):
                forget_mismatches(node)
        with cluster.nodes[hosts(cluster, caller)].client() as http:
            assert read(http, kind, f"min-position={WRITTEN}:1") == 1


@pytest.mark.parametrize("kind", ["point", "multi-get"])
@pytest.mark.parametrize("caller", [ASSUMED, WRITTEN], ids=["another node", "this node"])
def test_named_position_elsewhere_is_waited_for(tmp_path: Path, caller: int, kind: str) -> None:
    """The read waits at the node that hosts the named partition, and then finds the key there."""
    with three_nodes(tmp_path, 1) as cluster:
        node, owner = cluster.nodes[hosts(cluster, caller)], cluster.nodes[hosts(cluster, WRITTEN)]
        values: list[Any] = []

        def reading() -> None:
            with node.client() as http:
                values.append(read(http, kind, f"min-position={WRITTEN}:1&deadline-ms=30000"))

        thread = threading.Thread(target=reading)
        thread.start()
        eventually("it waits", lambda: waits(owner, WRITTEN) or values)
        cluster.put(KEY.encode(), b"1", partition=WRITTEN)
        thread.join()
    assert values == [1]


@pytest.mark.parametrize("kind", ["point", "multi-get", "scan", "count"])
def test_read_fails_if_a_named_position_is_not_reached(tmp_path: Path, kind: str) -> None:
    """Every kind of read answers 503 not_fresh_enough, with the partition and the number of missing records."""
    with three_nodes(tmp_path, 1) as cluster, cluster.nodes[hosts(cluster, WRITTEN)].client() as http:
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


def test_every_named_position_is_respected(tmp_path: Path) -> None:
    """A read fails if one of two named positions is not reached."""
    with three_nodes(tmp_path, 1) as cluster, cluster.nodes[hosts(cluster, WRITTEN)].client() as http:
        cluster.put(b"a", b"1", partition=CRC32)
        refused = http.get(f"/v1/keys/{KEY}?min-position={CRC32}:1,{WRITTEN}:1&deadline-ms=2000")
        assert (refused.json()["reason"], refused.json()["missing"]) == ("not_fresh_enough", [WRITTEN])


def test_partial_multi_get_reports_no_key_absent_while_a_position_is_not_reached(tmp_path: Path) -> None:
    """With partial=allow, `found` is null: the key may be in the partition of that position."""
    with three_nodes(tmp_path, 1) as cluster, cluster.nodes[hosts(cluster, WRITTEN)].client() as http:
        options = f"min-position={WRITTEN}:1&deadline-ms=2000&partial=allow"
        answer = http.post(f"/v1/multi-get?{options}", json={"keys": [KEY]}).json()
    assert (answer["missing"], answer["items"][0]["found"]) == ([WRITTEN], None)


def test_local_read_refuses_a_position_of_another_node(tmp_path: Path) -> None:
    """A node that may not forward refuses a position in a partition that it does not host."""
    with three_nodes(tmp_path, 1) as cluster, cluster.nodes[hosts(cluster, ASSUMED)].client() as http:
        refused = http.get(f"/v1/keys/{KEY}?min-position={WRITTEN}:1&route=local")
        assert (refused.status_code, refused.json()["partition"]) == (421, WRITTEN)
        forwarded = http.get(
            f"/v1/keys/{KEY}?min-position={WRITTEN}:1",
            headers={"qt-forwarded": TOKEN, "qt-deadline-ms": "10000"},
        )
        assert (forwarded.status_code, forwarded.json()["partition"]) == (421, WRITTEN)


def test_position_that_is_reached_costs_nowaiting(tmp_path: Path) -> None:
    """The answer for an absent key states every named position, and that of the key's partition."""
    with three_nodes(tmp_path, 1) as cluster, cluster.nodes[hosts(cluster, ASSUMED)].client() as http:
        cluster.put(b"other", b"1")
        where = partition_for(b"other", "murmur2", 6)
        answer = http.get(f"/v1/keys/{KEY}?min-position={where}:1")
        assert (answer.status_code, answer.json()["reason"]) == (404, "key_not_found")
        stated = dict(pair.split(":") for pair in answer.headers["qt-position"].split(","))
        assert stated == {str(where): "1", str(ASSUMED): "0"}


def test_strong_read_follows_a_partitioner_that_changes_while_it_waits(tmp_path: Path) -> None:
    """The read fetches the end offset of the partition that holds the key from then on."""
    with served(tmp_path, partitions=6) as node:
        requested: list[set[int]] = []

        async def latest(partitions: list[int]) -> dict[int, int]:
            requested.append({*partitions})
            node.node.replicas.partitioner.note_mismatched(frozenset({"murmur2", "crc32"}))
            return {partition: 0 for partition in partitions}

        node.node.end_offsets.latest = latest  # type: ignore[method-assign, assignment]
        with node.client() as http:
            assert http.get(f"/v1/keys/{KEY}?consistency=strong").json()["reason"] == "key_not_found"
    assert requested == [{ASSUMED}, {WRITTEN}]
