"""Test that a placement reaches nodes over HTTP, and that reads continue while replicas move."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from queryable_app.placement.assignment import Placement
from queryable_app.platform.clock import monotonic_ms
from queryable_app.policy.freshness import ReadOptions
from queryable_app.serve.api.status import readiness
from queryable_app.serve.base.peer_frames import decode_rows, read_options_to_json
from queryable_app.wire.disk_format import ReplicaState
from tests.support.node_cluster import APPLICATION_ID, TOKEN, NodeCluster
from tests.support.served import Served
from tests.support.waiting import eventually

HEADERS = {"qt-node": TOKEN}
PATH = "/internal/v1/placement"
READS_OF_A_MOVE = 8  # twice as many as there are kinds of reads
KEYS = [f"key-{n:06d}" for n in range(200)]


class Two(NodeCluster):
    """Two nodes. At first, node 0 hosts both partitions."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, [Placement(1, APPLICATION_ID, (), ((0,), (0,)), ((), ()))] * 2)
        self.first = self.placement
        for node in self.nodes:
            node.node.assigned_replicas.removal_delay_seconds = 0.5
            node.begin(node.node.assigned_replicas.start()).result(10)

    def put_placement(self, ordinal: int, placement: Placement) -> httpx.Response:
        with self.nodes[ordinal].client(headers=HEADERS) as http:
            return http.put(PATH, content=placement.to_json())


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Two]:
    with Two(tmp_path) as nodes:
        yield nodes


def test_placement_is_put_and_read(two: Two) -> None:
    """A node answers the epoch in effect; a lower or equal epoch changes nothing."""
    newer = replace(two.first, epoch=4, hydrating=((), (1,)))
    assert two.put_placement(1, newer).json() == {"epoch": 4}
    assert two.put_placement(1, replace(two.first, epoch=3)).json() == {"epoch": 4}
    with two.nodes[1].client(headers=HEADERS) as http:
        assert Placement.from_json(http.get(PATH).text) == newer
        assert http.get("/v1/placement").json()["epoch"] == 4
        assert http.get("/v1/status").json()["epoch"] == 4
        assert "qt_placement_epoch 4.0" in http.get("/metrics").text


def changed(field: str, value: Any) -> dict[str, Any]:
    whole: dict[str, Any] = {
        "epoch": 9,
        "applicationId": "tests.users.r1",
        "partitions": 2,
        "addresses": ["http://127.0.0.1:1", "http://127.0.0.1:2"],
        "serving": [[0], [1]],
        "hydrating": [[], []],
    }
    return {**whole, field: value}


@pytest.mark.parametrize(
    "body",
    [
        [],
        {},
        None,
        changed("applicationId", "tests.users.r2"),
        changed("serving", [[0]]),
        changed("serving", [[0], [2]]),
        changed("serving", [[0], [1, 1]]),
        changed("serving", 7),
        changed("epoch", "many"),
        changed("epoch", 10**30),
        changed("addresses", ["file:///etc", "http://127.0.0.1:2"]),
        changed("addresses", []),
    ],
)
def test_malformed_placement_is_refused(two: Two, body: Any) -> None:
    """A node refuses an invalid placement, and keeps the one it has."""
    with two.nodes[0].client(headers=HEADERS) as http:
        answer = http.put(PATH, content=json.dumps(body))
        assert (answer.status_code, answer.json()["reason"]) == (400, "invalid_request")
        assert http.get("/v1/placement").json()["epoch"] == 1


@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_placement_requires_the_node_token(two: Two, method: str) -> None:
    """A request without a token gets 401, with another token 403."""
    with two.nodes[0].client() as http:
        assert http.request(method, PATH, content="{}").json()["reason"] == "unauthenticated"
        answer = http.request(method, PATH, content="{}", headers={"qt-node": "x"})
        assert (answer.status_code, answer.json()["reason"]) == (403, "forbidden")


def test_node_that_only_hydrates_is_ready(two: Two) -> None:
    """Hydrating replicas do not count for readiness; a serving replica that is not complete does."""
    assert two.put_placement(1, replace(two.first, epoch=2, hydrating=((), (1,)))).json() == {"epoch": 2}
    with two.nodes[1].client() as http:
        eventually("it is open", lambda: not http.get("/v1/status").json()["partitions"][0]["absent"])
        assert http.get("/readyz").status_code == 200
        assert http.get("/readyz").json()["hydrating"] == 1
        two.put_placement(1, replace(two.first, epoch=3, serving=((0,), (1, 0))))
        assert http.get("/readyz").status_code == 503


def test_newer_placement_spreads_between_nodes(two: Two) -> None:
    """A node that sees a newer epoch in a heartbeat fetches that placement."""
    assert (
        two.put_placement(
            0, replace(two.first, epoch=5, serving=((0,), (0,)), hydrating=((1,), ()))
        ).status_code
        == 200
    )
    with two.nodes[1].client() as http:
        eventually("the other follows", lambda: http.get("/v1/placement").json()["epoch"] == 5)
        eventually(
            "it has opened a replica",
            lambda: http.get("/v1/status").json()["partitions"][0]["absent"] is None,
        )


def test_new_replica_hydrates_from_a_peer(two: Two) -> None:
    """A new replica has rows and position of its peer before ingest sends anything, and is not complete yet."""
    source, target = two.nodes
    source.fill(len(KEYS))
    target.node.hydration.records_min = 1
    position = source.node.replicas.by_partition[1].position

    two.put_placement(0, replace(two.first, epoch=2, hydrating=((), (1,))))

    eventually("it is open", lambda: 1 in target.node.replicas.by_partition and all_open(target))
    replica = target.node.replicas.by_partition[1]
    assert (replica.position, replica.complete, replica.role) == (position, False, "hydrating")
    rows = target.on_loop(lambda: list(replica.store.rows()))
    assert rows == source.on_loop(lambda: list(source.node.replicas.by_partition[1].store.rows()))
    with target.client() as http:
        assert http.get("/v1/status").json()["partitions"][0]["hydration"] == {"from": "topic"}
        assert http.get(f"/v1/keys/{KEYS[0]}").status_code == 200


PEER_READS = pytest.mark.parametrize(
    ("path", "body"),
    [
        ("rows", {"start": None, "stop": None, "reverse": False}),
        ("keys", {"keys": {"1": []}}),
        ("count", {"approximate": False}),
    ],
)


@PEER_READS
def test_replica_behind_its_reported_position_does_not_answer(
    two: Two, path: str, body: dict[str, object]
) -> None:
    """A replica that was replaced or reset after it answered cover does not answer as of that position."""
    source = two.nodes[0]
    source.fill(len(KEYS))
    position = source.node.replicas.by_partition[1].position
    with source.client(headers=HEADERS) as http:
        there = http.post(f"/internal/v1/{path}", json={**body, "positions": {"1": position}})
        behind = http.post(f"/internal/v1/{path}", json={**body, "positions": {"1": position + 1}})
    assert (there.status_code, behind.status_code) == (200, 503)


@PEER_READS
def test_emptied_replica_does_not_answer_until_it_is_complete(
    two: Two, path: str, body: dict[str, object]
) -> None:
    """A replica that was emptied after it answered cover does not answer, though it is at that position again."""
    source = two.nodes[0]
    source.fill(len(KEYS))
    replica = source.node.replicas.by_partition[1]
    position = replica.position
    request = {**body, "positions": {"1": position}}
    with source.client(headers=HEADERS) as http:
        before = http.post(f"/internal/v1/{path}", json={**request, "complete": [1]})
        source.on_loop(replica.rebuild)
        source.on_loop(lambda: replica.apply((), replica.state._replace(position=position)))
        after = http.post(f"/internal/v1/{path}", json={**request, "complete": [1]})
        of_incomplete = http.post(f"/internal/v1/{path}", json={**request, "complete": []})
    assert (before.status_code, after.status_code, of_incomplete.status_code) == (200, 503, 200)


@PEER_READS
def test_replica_that_only_lacks_the_newest_records_answers_reads_that_chose_it(
    two: Two, path: str, body: dict[str, object]
) -> None:
    """A replica that left the node and came back still answers as of the position that it had in answer to cover."""
    source = two.nodes[0]
    source.fill(len(KEYS))
    replica = source.node.replicas.by_partition[1]
    request = {**body, "positions": {"1": replica.position}, "complete": [1]}
    with source.client(headers=HEADERS) as http:
        before = http.post(f"/internal/v1/{path}", json=request)
        source.on_loop(replica.require_catch_up)
        after = http.post(f"/internal/v1/{path}", json=request)
    assert (before.status_code, after.status_code, after.content) == (200, 200, before.content)


def test_scan_ends_on_the_replica_on_which_it_began(two: Two) -> None:
    """A removed replica still answers a peer's scan that began on it; a new read goes to another node."""
    source = two.nodes[0]
    source.fill(len(KEYS))
    body = {"positions": {"1": 0}, "start": None, "stop": None, "reverse": False}
    cover = {"partitions": [1], "asked": read_options_to_json(ReadOptions(), 1000)}
    with source.client(headers=HEADERS) as http:
        first = http.post("/internal/v1/rows", json=body).content
        two.put_placement(0, replace(two.first, epoch=2, serving=((0,), (1,))))
        assert http.post("/internal/v1/rows", json=body).content == first
        head, _ = decode_rows(http.post("/internal/v1/cover", json=cover).content)
        assert [refused["reason"] for refused in head["refused"]] == ["WRONG_OWNER"]
        eventually("it has left", lambda: not source.node.replicas.removing)
        assert http.post("/internal/v1/rows", json=body).status_code == 421


def test_reads_continue_while_a_partition_moves(two: Two) -> None:
    """While a partition moves between two nodes and back, no point read, multi-get, scan or stream fails on either."""
    for node in two.nodes:
        node.node.assigned_replicas.removal_delay_seconds = (
            60  # until it comes back, however busy the machine is
        )
    both = replace(two.first, serving=((0,), (0, 1)), hydrating=((), ()))
    two.put_placement(1, replace(both, epoch=2))
    eventually("it is open", lambda: two.nodes[1].node.replicas.by_partition[1].opened)
    for node in two.nodes:
        node.on_loop(partial(complete, node))
        node.fill(len(KEYS))
    over = threading.Event()
    answers: Counter[str] = Counter()

    def read(node: Served, number: int) -> None:
        with node.client() as http:
            while not over.is_set():
                key = KEYS[number % len(KEYS)]
                for what, answer in (
                    ("point", http.get(f"/v1/keys/{key}")),
                    ("many", http.post("/v1/multi-get", json={"keys": KEYS})),
                    ("page", http.get("/v1/scan?limit=1000")),
                    ("stream", http.get("/v1/scan", headers={"accept": "application/x-ndjson"})),
                ):
                    rows = {"many": '"found":true', "page": '"key":', "stream": '"key":'}.get(what)
                    whole = rows is None or answer.text.count(rows) == len(KEYS)
                    answers[f"{what} {answer.status_code} {'' if whole else answer.text[:300]}"] += 1
                number += 7

    threads = [
        threading.Thread(target=read, args=(node, n)) for n, node in enumerate([*two.nodes, *two.nodes])
    ]
    for thread in threads:
        thread.start()
    epoch = 2
    for _ in range(4):
        for serving in (((0,), (1,)), ((0,), (1, 0)), ((0,), (0,)), ((0,), (0, 1))):
            epoch += 1
            for ordinal in (1, 0):
                assert (
                    two.put_placement(ordinal, replace(both, epoch=epoch, serving=serving)).status_code == 200
                )
            for node in two.nodes:  # a returned replica has its rows, and reaches the end offset again
                eventually("all are open", partial(all_open, node))
                node.on_loop(partial(complete, node))
            enough = answers.total() + READS_OF_A_MOVE
            eventually("reads went on", lambda enough=enough: answers.total() >= enough)  # type: ignore[misc]
    over.set()
    for thread in threads:
        thread.join(20)
    assert set(answers) == {"point 200 ", "many 200 ", "page 200 ", "stream 200 "}
    assert min(answers.values()) > 20


def replicas_of(node: Served) -> list[Any]:
    return list(node.node.replicas.by_partition.values())


def all_open(node: Served) -> bool:
    return all(replica.opened for replica in replicas_of(node))


def complete(node: Served) -> None:
    for replica in replicas_of(node):
        if not replica.complete:
            replica.apply((), ReplicaState(0, True))
            replica.note_end_offset(monotonic_ms(), 0)
    assert readiness(node.node)["ready"]
