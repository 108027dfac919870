"""Reads over several partitions find another replica when a local one turns out to be damaged in the middle of the read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from queryable_app.errors import Reason
from queryable_app.wire.disk_format import ReplicaState, Row, encode_row
from tests.support.trio import Trio
from tests.support.waiting import eventually

KEYS = [f"key-{n:03d}" for n in range(300)]
VALUES = [os.urandom(2000).hex() for _ in KEYS]


@pytest.fixture
def trio(tmp_path: Path) -> Iterator[Trio]:
    """Start three nodes, of which the first two have the same rows and no damage yet."""
    puts = [
        (key.encode(), encode_row(Row(n, 1, 0, f'"{value}"'.encode())))
        for n, (key, value) in enumerate(zip(KEYS, VALUES, strict=True))
    ]
    with Trio(tmp_path) as started:
        for node in started.nodes[:2]:
            replica = node.node.replicas.by_partition[0]
            state = ReplicaState(len(puts), True, len(puts))
            node.on_loop(partial(replica.apply, puts, state))
        eventually(
            "the heartbeat reports a complete replica",
            lambda: started.nodes[0].node.peers.has_complete_replica(1, 0),
        )
        yield started


@pytest.mark.parametrize("what", ["multi-get", "page", "count"])
def test_read_that_finds_damage_is_answered_by_another_node(trio: Trio, what: str) -> None:
    """The same request returns all rows, and the local replica is marked as damaged from then on."""
    trio.damage(0)
    with trio.nodes[0].client() as client:
        match what:
            case "multi-get":
                answer = client.post("/v1/multi-get?deadline-ms=20000", json={"keys": KEYS})
                found = [item["value"] for item in answer.json()["items"]]
            case "page":
                answer = client.get("/v1/scan?limit=1000&deadline-ms=20000")
                found = [item["value"] for item in answer.json()["items"]]
            case _:
                answer = client.get("/v1/count?deadline-ms=20000")
                found = answer.json()["count"]
    assert (answer.status_code, answer.headers["qt-hops"]) == (200, "1")
    assert found == (len(KEYS) if what == "count" else VALUES)
    assert "Corruption" in str(trio.nodes[0].node.replicas.by_partition[0].damaged)


@pytest.mark.parametrize("what", ["multi-get", "page", "count"])
def test_read_fails_if_all_replicas_are_damaged(trio: Trio, what: str) -> None:
    """The read answers not_available, never a part of the rows."""
    for ordinal in (0, 1):
        trio.damage(ordinal)
    with trio.nodes[0].client() as client:
        if what == "multi-get":
            answer = client.post("/v1/multi-get?deadline-ms=20000", json={"keys": KEYS})
        else:
            answer = client.get(f"/v1/{'scan?limit=1000&' if what == 'page' else 'count?'}deadline-ms=20000")
    assert (answer.status_code, answer.json()["reason"]) == (503, Reason.NOT_AVAILABLE.name.lower())
