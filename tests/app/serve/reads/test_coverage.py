"""Reads over several partitions on real stores, when a copy here turns out to be damaged in the middle of one."""

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
    """The first two have the same rows, and the first one has come to no damage yet."""
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
            "the second is heard to be whole", lambda: started.nodes[0].node.peers.has_complete_replica(1, 0)
        )
        yield started


@pytest.mark.parametrize("what", ["multi-get", "page", "count"])
def test_a_read_that_comes_to_damage_here_is_answered_by_another_node(trio: Trio, what: str) -> None:
    """All of it, within the same request; the copy here is known to be damaged from then on."""
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
def test_where_all_copies_are_damaged_a_read_says_so(trio: Trio, what: str) -> None:
    """It is not available, never a part."""
    for ordinal in (0, 1):
        trio.damage(ordinal)
    with trio.nodes[0].client() as client:
        if what == "multi-get":
            answer = client.post("/v1/multi-get?deadline-ms=20000", json={"keys": KEYS})
        else:
            answer = client.get(f"/v1/{'scan?limit=1000&' if what == 'page' else 'count?'}deadline-ms=20000")
    assert (answer.status_code, answer.json()["reason"]) == (503, Reason.NOT_AVAILABLE.name.lower())
