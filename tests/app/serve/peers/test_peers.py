"""Several nodes: every one answers for all of them, at most one hop away, and nothing is lost in silence."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from queryable_app.wire.partitioners import Partitioning, partition_for
from tests.support.served import Served, served
from tests.support.three_nodes import TOKEN, Cluster
from tests.support.waiting import eventually

NDJSON = {"accept": "application/x-ndjson"}
KEYS = [f"key-{n:03d}" for n in range(60)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One copy of each partition; nobody stops a node of it."""
    with Cluster(tmp_path_factory.mktemp("cluster"), 1) as started:
        for number, key in enumerate(KEYS):
            started.put(key.encode(), b"%d" % number)
        yield started


@pytest.mark.parametrize("ordinal", [0, 1, 2])
def test_every_node_answers_every_key(cluster: Cluster, ordinal: int) -> None:
    """With one hop when another node holds it, and the same answer otherwise."""
    with cluster.nodes[ordinal].client() as http:
        answers = {key: http.get(f"/v1/keys/{key}") for key in KEYS}

    assert {key: answer.json() for key, answer in answers.items()} == {key: n for n, key in enumerate(KEYS)}
    for answer in answers.values():
        owner = cluster.placement.serving[int(answer.headers["qt-partition"])][0]
        assert answer.headers["qt-served-by"] == f"users-r1-{owner}"
        assert answer.headers["qt-hops"] == ("0" if owner == ordinal else "1")


@pytest.mark.parametrize("ordinal", [0, 1, 2])
def test_every_node_answers_for_all_partitions(cluster: Cluster, ordinal: int) -> None:
    """Scan, range, prefix, stream, count and multi-get gather what the others hold, in order."""
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
        items = http.post("/v1/multi-get", json={"keys": [*KEYS, "nobody"]}).json()["items"]
        assert [item["found"] for item in items] == [*(True for _ in KEYS), False]


def test_a_forwarded_read_is_what_was_asked(cluster: Cluster) -> None:
    """Form, entity tag, options and odd keys go with it."""
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


def other(cluster: Cluster, key: str) -> Served:
    """A node that does not hold the key."""
    owner = cluster.placement.serving[partition_for(key.encode(), "murmur2", 6)][0]
    return cluster.nodes[(owner + 1) % 3]


def test_local_and_redirect(cluster: Cluster) -> None:
    """route=local is wrong_owner elsewhere; route=redirect names the owner's address."""
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
def test_what_is_between_nodes_takes_their_token(cluster: Cluster, path: str) -> None:
    """No token is 401, a wrong one 403; so is a forged mark on a read."""
    with cluster.nodes[0].client() as http:
        method = "GET" if path == "heartbeat" else "POST"
        assert http.request(method, f"/internal/v1/{path}").json()["reason"] == "unauthenticated"
        wrong = http.request(method, f"/internal/v1/{path}", headers={"qt-node": "x"})
        assert (wrong.status_code, wrong.json()["reason"]) == (403, "forbidden")
        assert http.get("/v1/keys/a", headers={"qt-forwarded": "x"}).status_code == 403
        if method == "POST":
            broken = http.post(f"/internal/v1/{path}", headers={"qt-node": TOKEN}, json=[])
            assert broken.json()["reason"] == "invalid_request"


def test_a_forwarded_read_is_not_forwarded_again(cluster: Cluster) -> None:
    """A node that is asked by another one, and does not hold the partition, says wrong_owner."""
    with other(cluster, "key-000").client() as http:
        answer = http.get("/v1/keys/key-000", headers={"qt-forwarded": TOKEN})
    assert (answer.status_code, answer.json()["reason"]) == (421, "wrong_owner")


def test_a_lost_node_leaves_the_others_answering(tmp_path: Path) -> None:
    """With a standby copy of everything, reads of all kinds go on at once when a node goes away."""
    with Cluster(tmp_path, 2) as cluster:
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
                "it is a suspect", lambda: any(p["suspect"] for p in http.get("/v1/status").json()["peers"])
            )


def test_a_partition_that_nobody_answers_is_named(tmp_path: Path) -> None:
    """not_available, never key_not_found; with partial=allow the rest, marked as such."""
    with Cluster(tmp_path, 1) as cluster:
        for number, key in enumerate(KEYS):
            cluster.put(key.encode(), b"%d" % number)
        gone = [p for p in range(6) if cluster.placement.serving[p] == (1,)]
        lost = next(key for key in KEYS if partition_for(key.encode(), "murmur2", 6) in gone)
        cluster.stop(1)
        with cluster.nodes[0].client() as http:
            point = http.get(f"/v1/keys/{lost}")
            assert (point.status_code, point.json()["reason"], "retry-after" in point.headers) == (
                503, "not_available", True)  # fmt: skip
            for path in ("/v1/scan?", "/v1/count?", "/v1/prefix/key?"):
                refused = http.get(path)
                assert (refused.status_code, refused.json()["missing"]) == (503, gone)
                part = http.get(path + "partial=allow").json()
                assert (part["complete"], part["missing"]) == (False, gone)
            items = http.post("/v1/multi-get?partial=allow", json={"keys": KEYS}).json()["items"]
            assert {item["found"] for item in items if item["partition"] in gone} == {None}
            assert {item["found"] for item in items if item["partition"] not in gone} == {True}


def test_a_copy_that_is_not_fresh_is_passed_over(tmp_path: Path) -> None:
    """A node that is behind asks one that is not."""
    with Cluster(tmp_path, 2) as cluster:
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


@pytest.mark.parametrize("lag_is_known", [False, True], ids=["just come back", "just stopped streaming"])
def test_a_copy_that_does_not_stream_is_not_waited_for_in_vain(tmp_path: Path, lag_is_known: bool) -> None:
    """A read that needs a position gets it from the copy that has it, before its deadline, whichever node is asked."""
    with Cluster(tmp_path, 2) as cluster:
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


def test_nodes_tell_one_another_of_mixed_producers(tmp_path: Path) -> None:
    """A contradiction that one node has seen makes all nodes look everywhere, and the newest row of any node answers."""
    with Cluster(tmp_path, 1) as cluster:
        cluster.put(b"mixed", b'"old"', partition=0, timestamp_ms=10)
        cluster.put(b"mixed", b'"new"', partition=1, timestamp_ms=20)
        cluster.put(b"mixed", b'"older"', partition=2, timestamp_ms=5)
        for node in cluster.nodes:
            eventually("it knows", lambda n=node: n.node.replicas.partitioning.algorithm == "scatter")  # type: ignore[misc]
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
def test_a_node_that_has_forgotten_of_mixed_producers_is_told_by_whom_it_asks(
    tmp_path: Path, what: str
) -> None:
    """As one that lost its disk, and asks another node before their next heartbeats. No key is missed or counted twice."""
    with Cluster(tmp_path, 1) as cluster:
        where = partition_for(b"mixed", "murmur2", 6)
        asked = next(n for n in range(3) if n not in cluster.placement.serving[where])
        elsewhere = next(p for p in range(6) if p != where and asked not in cluster.placement.serving[p])
        cluster.put(b"mixed", b'"old"', timestamp_ms=10)
        cluster.put(b"mixed", b'"new"', partition=elsewhere, timestamp_ms=20)
        replicas = cluster.nodes[asked].node.replicas
        eventually("it knows", lambda: replicas.partitioning.algorithm == "scatter")

        def forget() -> None:
            replicas.partitioner.mismatched = frozenset()
            replicas.partitioner.partitioning = Partitioning("murmur2", 6)

        cluster.nodes[asked].on_loop(forget)
        with cluster.nodes[asked].client() as http:
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


def test_rows_of_many_batches_are_merged(tmp_path: Path) -> None:
    """More rows than nodes send at once come complete and in order, forwards and backwards."""
    with Cluster(tmp_path, 1) as cluster:
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
def test_what_another_node_no_longer_waits_for_is_not_worked_on(
    tmp_path: Path, path: str, body: dict[str, Any]
) -> None:
    """Its deadline comes with the question, and ends the work on it."""
    token = tmp_path / "token"
    token.write_text(TOKEN)
    with served(tmp_path, partitions=1, settings={"internal_token_path": str(token)}) as node:
        node.fill(100_000)
        with node.client(headers={"qt-node": TOKEN}) as http:
            late = http.post(f"/internal/v1/{path}", json=body, headers={"qt-deadline-ms": "1"})
            assert (late.status_code, late.json()["reason"]) == (504, "deadline_exceeded")
            assert http.post(f"/internal/v1/{path}", json=body).status_code == 200
