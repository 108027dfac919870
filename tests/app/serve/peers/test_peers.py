"""Each of several nodes answers every read, with at most one hop, and names what is missing."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from queryable_app.wire.partitioners import Partitioning, partition_for
from tests.support.node_cluster import TOKEN, NodeCluster, three_nodes
from tests.support.served import Served, served
from tests.support.waiting import eventually

NDJSON = {"accept": "application/x-ndjson"}
KEYS = [f"key-{n:03d}" for n in range(60)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeCluster]:
    """Three nodes with one replica of each partition. No test stops a node."""
    with three_nodes(tmp_path_factory.mktemp("cluster"), 1) as started:
        for number, key in enumerate(KEYS):
            started.put(key.encode(), b"%d" % number)
        yield started


@pytest.mark.parametrize("ordinal", [0, 1, 2])
def test_every_node_answers_every_key(cluster: NodeCluster, ordinal: int) -> None:
    """The answer has one hop if another node hosts the key, and is the same otherwise."""
    with cluster.nodes[ordinal].client() as http:
        answers = {key: http.get(f"/v1/keys/{key}") for key in KEYS}

    assert {key: answer.json() for key, answer in answers.items()} == {key: n for n, key in enumerate(KEYS)}
    for answer in answers.values():
        owner = cluster.placement.serving[int(answer.headers["qt-partition"])][0]
        assert answer.headers["qt-served-by"] == f"users-r1-{owner}"
        assert answer.headers["qt-hops"] == ("0" if owner == ordinal else "1")


@pytest.mark.parametrize("ordinal", [0, 1, 2])
def test_every_node_answers_for_all_partitions(cluster: NodeCluster, ordinal: int) -> None:
    """Scan, range, prefix, stream, count and multi-get include the rows of the other nodes, in order."""
    with cluster.nodes[ordinal].client() as http:
        found: list[str] = []
        cursor = ""
        while True:
            page = http.get(f"/v1/scan?limit=7{cursor}").json()
            assert (page["complete"], len(page["positions"])) == (True, 6)
            found += [item["key"] for item in page["items"]]
            if page["cursor"] is None:
                break
            cursor = f"&cursor={page['cursor']}"
        assert found == KEYS
        descending = http.get("/v1/range?from=key-010&to=key-020&order=desc").json()["items"]
        assert [item["key"] for item in descending] == KEYS[10:20][::-1]
        assert len(http.get("/v1/prefix/key-01").json()["items"]) == 10
        lines = http.get("/v1/scan", headers=NDJSON).text.splitlines()
        assert [json.loads(line)["key"] for line in lines] == KEYS
        assert http.get("/v1/count").json()["count"] == len(KEYS)
        assert http.get("/v1/count?approximate=true").json()["count"] == len(KEYS)
        items = http.post("/v1/multi-get", json={"keys": [*KEYS, "missing"]}).json()["items"]
        assert [item["found"] for item in items] == [*(True for _ in KEYS), False]


def test_forwarded_read_keeps_its_options(cluster: NodeCluster) -> None:
    """The other node gets the format, entity tag, options and key of the request."""
    for key in (b"\xff/\x00", b"a?b#c", b"", "🦊 x".encode()):
        cluster.put(key, b'{"k":1}')
        path = "/v1/keys/" + "".join(f"%{byte:02X}" for byte in key)
        for node in cluster.nodes:
            with node.client() as http:
                answer = http.get(path, headers={"accept": "application/octet-stream"})
                assert (answer.content, answer.headers["content-type"]) == (
                    b'{"k":1}',
                    "application/octet-stream",
                )
                tag = http.get(path).headers["etag"]
                assert http.get(path, headers={"if-none-match": tag}).status_code == 304
                assert http.head(path).headers["content-length"] == "7"
                absent = http.get(path + "x?consistency=bounded&max-lag-ms=100000&deadline-ms=10000")
                assert (absent.status_code, absent.json()["reason"]) == (404, "key_not_found")


def other(cluster: NodeCluster, key: str) -> Served:
    """Return a node that does not host the key."""
    owner = cluster.placement.serving[partition_for(key.encode(), "murmur2", 6)][0]
    return cluster.nodes[(owner + 1) % 3]


def test_route_local_and_redirect(cluster: NodeCluster) -> None:
    """A node without the key answers wrong_owner to route=local, and the owner's address to route=redirect."""
    node = other(cluster, "key-000")
    with node.client() as http:
        refused = http.get("/v1/keys/key-000?route=local")
        assert (refused.status_code, refused.json()["reason"]) == (421, "wrong_owner")
        sent = http.get("/v1/keys/key-000?route=redirect")
        assert sent.status_code == 307
        assert httpx.get(sent.headers["location"]).json() == 0
        everything = http.get("/v1/scan?route=local")
        assert (everything.status_code, len(everything.json()["missing"])) == (421, 4)
        here = http.get("/v1/scan?route=local&partial=allow").json()
        assert (here["complete"], len(here["positions"])) == (False, 2)


@pytest.mark.parametrize("path", ["heartbeat", "cover", "rows", "keys", "count"])
def test_internal_paths_need_the_nodes_token(cluster: NodeCluster, path: str) -> None:
    """Without a token the answer is 401, with a wrong one 403. A forged forwarding header is 403 too."""
    with cluster.nodes[0].client() as http:
        method = "GET" if path == "heartbeat" else "POST"
        assert http.request(method, f"/internal/v1/{path}").json()["reason"] == "unauthenticated"
        wrong = http.request(method, f"/internal/v1/{path}", headers={"qt-node": "x"})
        assert (wrong.status_code, wrong.json()["reason"]) == (403, "forbidden")
        assert http.get("/v1/keys/a", headers={"qt-forwarded": "x"}).status_code == 403
        if method == "POST":
            broken = http.post(f"/internal/v1/{path}", headers={"qt-node": TOKEN}, json=[])
            assert broken.json()["reason"] == "invalid_request"


def test_forwarded_read_is_not_forwarded_again(cluster: NodeCluster) -> None:
    """A node answers 421 to a forwarded read of a partition that it does not host."""
    with other(cluster, "key-000").client() as http:
        answer = http.get("/v1/keys/key-000", headers={"qt-forwarded": TOKEN})
    assert (answer.status_code, answer.json()["reason"]) == (421, "wrong_owner")


def test_other_nodes_answer_when_a_node_is_lost(tmp_path: Path) -> None:
    """With a standby of every partition, reads of all kinds succeed at once after a node has ended."""
    with three_nodes(tmp_path, 2) as cluster:
        for number, key in enumerate(KEYS):
            cluster.put(key.encode(), b"%d" % number)
        with cluster.nodes[0].client() as http:
            assert {http.get(f"/v1/keys/{key}").status_code for key in KEYS} == {200}
            cluster.stop(1)
            assert {http.get(f"/v1/keys/{key}").status_code for key in KEYS} == {200}
            assert [i["key"] for i in http.get("/v1/scan").json()["items"]] == KEYS
            assert http.get("/v1/count").json()["count"] == len(KEYS)
            items = http.post("/v1/multi-get", json={"keys": KEYS}).json()["items"]
            assert all(item["found"] for item in items)
            eventually(
                "it is suspected", lambda: any(p["suspect"] for p in http.get("/v1/status").json()["peers"])
            )


def test_missing_partition_is_named(tmp_path: Path) -> None:
    """The answer is not_available, never key_not_found. With partial=allow it has the other partitions, and says so."""
    with three_nodes(tmp_path, 1) as cluster:
        for number, key in enumerate(KEYS):
            cluster.put(key.encode(), b"%d" % number)
        missing = [p for p in range(6) if cluster.placement.serving[p] == (1,)]
        lost = next(key for key in KEYS if partition_for(key.encode(), "murmur2", 6) in missing)
        cluster.stop(1)
        with cluster.nodes[0].client() as http:
            point = http.get(f"/v1/keys/{lost}")
            assert (point.status_code, point.json()["reason"], "retry-after" in point.headers) == (
                503, "not_available", True)  # fmt: skip
            for path in ("/v1/scan?", "/v1/count?", "/v1/prefix/key?"):
                refused = http.get(path)
                assert (refused.status_code, refused.json()["missing"]) == (503, missing)
                part = http.get(path + "partial=allow").json()
                assert (part["complete"], part["missing"]) == (False, missing)
            items = http.post("/v1/multi-get?partial=allow", json={"keys": KEYS}).json()["items"]
            assert {item["found"] for item in items if item["partition"] in missing} == {None}
            assert {item["found"] for item in items if item["partition"] not in missing} == {True}


def test_stale_replica_is_not_read(tmp_path: Path) -> None:
    """A node whose replica lags too far forwards the read to one that is fresh."""
    with three_nodes(tmp_path, 2) as cluster:
        cluster.put(b"key-000", b"1")
        where = partition_for(b"key-000", "murmur2", 6)
        behind, fresh = cluster.placement.serving[where]
        cluster.nodes[behind].on_loop(
            lambda: cluster.nodes[behind].node.replicas.by_partition[where].note_end_offset(1, 10**6)
        )
        with cluster.nodes[behind].client() as http:
            answer = http.get("/v1/keys/key-000?max-lag-records=10")
            assert (answer.json(), answer.headers["qt-served-by"]) == (1, f"users-r1-{fresh}")
            assert answer.headers["qt-role"] == "standby"
            assert http.get("/v1/scan?max-lag-records=10").json()["complete"] is True


@pytest.mark.parametrize("lag_is_known", [False, True], ids=["just restarted", "just stopped streaming"])
def test_read_does_not_wait_for_a_replica_that_does_not_stream(tmp_path: Path, lag_is_known: bool) -> None:
    """The replica that has reached the requested position answers before the deadline, whichever node gets the read."""
    with three_nodes(tmp_path, 2) as cluster:
        cluster.put(b"key-000", b"1")
        where = partition_for(b"key-000", "murmur2", 6)
        behind, ahead = cluster.placement.serving[where]
        cluster.nodes[ahead].put(b"key-000", b"2", partition=where)
        if not lag_is_known:
            cluster.nodes[behind].on_loop(
                lambda: setattr(cluster.nodes[behind].node.replicas.by_partition[where], "fresh_as_of_ms", -1)
            )
        for ordinal in range(3):
            with cluster.nodes[ordinal].client() as http:
                answer = http.get(f"/v1/keys/key-000?min-position={where}:2")
                assert (answer.json(), answer.headers["qt-served-by"]) == (2, f"users-r1-{ahead}")
                page = http.get(f"/v1/scan?min-position={where}:2").json()
                assert [item["value"] for item in page["items"]] == [2]


def test_partitioner_mismatch_spreads_to_all_nodes(tmp_path: Path) -> None:
    """After a mismatch on one node all nodes read every partition, and the newest row answers."""
    with three_nodes(tmp_path, 1) as cluster:
        cluster.put(b"mixed", b'"old"', partition=0, timestamp_ms=10)
        cluster.put(b"mixed", b'"new"', partition=1, timestamp_ms=20)
        cluster.put(b"mixed", b'"older"', partition=2, timestamp_ms=5)
        eventually("every node searches all partitions", lambda: cluster.algorithms() == {"scatter"})
        for node in cluster.nodes:
            with node.client() as http:
                answer = http.get("/v1/keys/mixed")
                assert (answer.json(), answer.headers["qt-partition"]) == ("new", "1")
                assert [i["value"] for i in http.get("/v1/scan").json()["items"]] == ["new"]
                assert http.get("/v1/count").json()["count"] == 1
                items = http.post("/v1/multi-get", json={"keys": ["mixed"]}).json()["items"]
                assert [item["value"] for item in items] == ["new"]
        cluster.put(b"mixed", None, partition=3, timestamp_ms=30)
        for node in cluster.nodes:
            with node.client() as http:
                assert http.get("/v1/keys/mixed").json()["reason"] == "key_not_found"
                assert http.get("/v1/count").json()["count"] == 0


@pytest.mark.parametrize("what", ["multi-get", "page", "stream", "count"])
def test_peer_read_reports_a_partitioner_mismatch(tmp_path: Path, what: str) -> None:
    """A node that lost its disk learns the mismatch from the answers of its peers; no key is missed or counted twice."""
    with three_nodes(tmp_path, 1) as cluster:
        where = partition_for(b"mixed", "murmur2", 6)
        reader = next(n for n in range(3) if n not in cluster.placement.serving[where])
        elsewhere = next(p for p in range(6) if p != where and reader not in cluster.placement.serving[p])
        cluster.put(b"mixed", b'"old"', timestamp_ms=10)
        cluster.put(b"mixed", b'"new"', partition=elsewhere, timestamp_ms=20)
        eventually("every node searches all partitions", lambda: cluster.algorithms() == {"scatter"})
        replicas = cluster.nodes[reader].node.replicas

        def lose_mismatch() -> None:
            replicas.partitioner.mismatched = frozenset()
            replicas.partitioner.partitioning = Partitioning("murmur2", 6)

        cluster.nodes[reader].on_loop(lose_mismatch)
        with cluster.nodes[reader].client() as http:
            match what:
                case "multi-get":
                    items = http.post("/v1/multi-get", json={"keys": ["mixed"]}).json()["items"]
                    found = [item.get("value") for item in items]
                case "page":
                    found = [item["value"] for item in http.get("/v1/scan").json()["items"]]
                case "stream":
                    text = http.get("/v1/scan", headers=NDJSON).text
                    found = [json.loads(line)["value"] for line in text.splitlines()]
                case _:
                    found = ["new"] * http.get("/v1/count").json()["count"]
    assert found == ["new"]


def test_rows_of_many_batches_are_merged_in_order(tmp_path: Path) -> None:
    """A scan of more rows than a node sends at once is complete, ascending and descending."""
    with three_nodes(tmp_path, 1) as cluster:
        for node in cluster.nodes:
            node.fill(20_000)
        with cluster.nodes[2].client() as http:
            keys = [
                json.loads(line)["key"] for line in http.get("/v1/scan", headers=NDJSON).text.splitlines()
            ]
            assert keys == [f"key-{n:06d}" for n in range(20_000)]
            keys = [
                json.loads(line)["key"]
                for line in http.get("/v1/scan?order=desc", headers=NDJSON).text.splitlines()
            ]
            assert keys == [f"key-{n:06d}" for n in reversed(range(20_000))]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("count", {"positions": {"0": 0}, "approximate": False}),
        ("rows", {"positions": {"0": 0}, "start": None, "stop": None, "reverse": False}),
        (
            "keys",
            {
                "positions": {"0": 0},
                "keys": {"0": [b64encode(b"key-%06d" % n).decode() for n in range(3000)]},
            },
        ),
    ],
)
def test_internal_read_ends_at_the_callers_deadline(tmp_path: Path, path: str, body: dict[str, Any]) -> None:
    """The request has the deadline, and the node stops working on it then."""
    token = tmp_path / "token"
    token.write_text(TOKEN)
    with served(tmp_path, partitions=1, settings={"internal_token_path": str(token)}) as node:
        node.fill(100_000)
        with node.client(headers={"qt-node": TOKEN}) as http:
            late = http.post(f"/internal/v1/{path}", json=body, headers={"qt-deadline-ms": "1"})
            assert (late.status_code, late.json()["reason"]) == (504, "deadline_exceeded")
            assert http.post(f"/internal/v1/{path}", json=body).status_code == 200
