"""Test that a replica with damaged rows is replaced by a peer's while the node runs."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from queryable_app.errors import Failure, Reason
from queryable_app.platform.clock import monotonic_ms
from queryable_app.serve.replication.hydration import PeerHydration
from queryable_app.serve.replication.replica_builder import fail_unopened
from queryable_app.serve.store.replica import Replica
from tests.support.served import Served
from tests.support.trio import LARGE, ROWS, Trio, complete
from tests.support.waiting import eventually

BYTES = {"accept": "application/octet-stream"}


def fill_both(trio: Trio) -> None:
    """Fill two replicas with the same rows, and start their checks."""
    trio.fill(0)
    rows, state = trio.source(0)
    second = trio.nodes[1]
    second.on_loop(lambda: replica_of(second).apply(list(rows.items()), state))
    eventually(
        "the heartbeats report two complete replicas", lambda: all(reports_complete(trio, o) for o in (0, 1))
    )
    for node in trio.nodes[:2]:
        start_checks(node)


def start_checks(node: Served) -> None:
    node.begin(node.node.assigned_replicas.start()).result(10)


def reports_complete(trio: Trio, ordinal: int) -> bool:
    return trio.nodes[1 - ordinal].node.peers.has_complete_replica(ordinal, 0)


def replica_of(node: Served) -> Replica:
    return node.node.replicas.by_partition[0]


def read_damaged_rows(node: Served) -> None:
    """Read all rows, as the sweeper does, until the damage is found."""
    with pytest.raises(Failure, match="cannot be read"):
        node.on_loop(lambda: list(replica_of(node).store.rows()))


def events(capfd: pytest.CaptureFixture[str], name: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    return [line for line in lines if line["event"] == name]


def test_damaged_replica_is_replaced_by_a_peers(trio: Trio, capfd: pytest.CaptureFixture[str]) -> None:
    """A damaged replica is fetched again from a peer, even if it is small. An event has the reason, and
    reads see the peer's rows."""
    fill_both(trio)
    source, damaged = trio.source(1), replica_of(trio.nodes[0]).store
    trio.damage(0)
    read_damaged_rows(trio.nodes[0])

    eventually("it is another store", lambda: replica_of(trio.nodes[0]).opened and not same(trio, damaged))

    assert trio.source(0) == complete(source)
    assert replica_of(trio.nodes[0]).damaged is None
    [event] = events(capfd, "copy-damaged")
    assert (event["partition"], "Corruption" in event["reason"]) == (0, True)
    left = [path.name for path in damaged.path.parent.iterdir() if path.name.startswith("p0")]
    assert left == ["p0000"]


def test_read_of_a_damaged_replica_never_sees_its_replacement(trio: Trio) -> None:
    """The replacement may be behind the damaged replica, so a running read fails and starts over."""
    fill_both(trio)
    damaged = replica_of(trio.nodes[0])
    store = damaged.store
    trio.damage(0)
    read_damaged_rows(trio.nodes[0])
    eventually("it is another store", lambda: replica_of(trio.nodes[0]).opened and not same(trio, store))

    with pytest.raises(Failure) as failed:
        _ = damaged.store
    assert failed.value.reason is Reason.NOT_AVAILABLE


def same(trio: Trio, store: object) -> bool:
    return replica_of(trio.nodes[0]).store is store


def test_reads_never_see_damage(trio: Trio) -> None:
    """From the first read that finds the damage on, every read returns what was written."""
    fill_both(trio)
    expected = {key: row[18:] for key, row in trio.source(1).rows.items()}
    trio.damage(0)

    with trio.nodes[0].client() as client:

        def read_all() -> None:
            for key in LARGE[::7]:
                answer = client.get(f"/v1/keys/{key.decode()}", headers=BYTES)
                assert (answer.status_code, answer.content[-1000:]) == (200, expected[key][-1000:])

        read_all()
        read_damaged_rows(trio.nodes[0])
        damaged = replica_of(trio.nodes[0]).store
        while not replica_of(trio.nodes[0]).opened or same(trio, damaged):
            read_all()
        trio.nodes[0].on_loop(lambda: replica_of(trio.nodes[0]).note_end_offset(monotonic_ms(), ROWS))
        assert replica_of(trio.nodes[0]).complete
        read_all()


def test_damaged_replica_is_absent_while_it_is_replaced(trio: Trio, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads and ingest do not use it meanwhile. If no peer sends a replica, the damaged one serves its
    readable rows again."""
    fill_both(trio)
    fetching, go_on = threading.Event(), threading.Event()

    async def fetch(self: PeerHydration, partition: int, into: Path, replace_damaged: bool = False) -> bool:
        assert (partition, replace_damaged) == (0, True)
        fetching.set()
        await asyncio.to_thread(go_on.wait, 10)
        return False

    monkeypatch.setattr(PeerHydration, "fetch", fetch)
    trio.damage(0)
    read_damaged_rows(trio.nodes[0])

    assert fetching.wait(10)
    replica = replica_of(trio.nodes[0])
    assert (replica.opened, replica.absent, replica.failed) == (
        False,
        "is being copied from another node",
        None,
    )
    assert trio.nodes[0].node.replicas.partitions_to_ingest() == []
    go_on.set()
    eventually("it is there again", lambda: replica.opened)
    assert trio.nodes[0].on_loop(lambda: replica.store.get(LARGE[0])) == trio.source(1).rows[LARGE[0]]
    assert replica.complete


def test_damaged_replica_stays_while_no_peer_is_complete(trio: Trio, monkeypatch: pytest.MonkeyPatch) -> None:
    """The readable rows are served, and no fetch is repeated in a loop."""
    trio.fill(0)
    start_checks(trio.nodes[0])
    checked = threading.Event()

    def another_is_complete(partition: int) -> bool:
        if replica_of(trio.nodes[0]).damaged is not None:
            checked.set()
        return has_complete_replica(partition)

    has_complete_replica = trio.nodes[0].node.peers.another_is_complete
    monkeypatch.setattr(trio.nodes[0].node.peers, "another_is_complete", another_is_complete)
    trio.damage(0)
    read_damaged_rows(trio.nodes[0])

    assert checked.wait(10)
    replica = replica_of(trio.nodes[0])
    with trio.nodes[0].client() as client:
        [status] = client.get("/v1/status").json()["partitions"]
    assert "Corruption" in status["damaged"]
    assert (replica.opened, replica.complete, replica.failed) == (True, True, None)
    assert trio.nodes[0].on_loop(lambda: replica.store.get(LARGE[0])) is not None


def test_damaged_replicas_do_not_replace_each_other(trio: Trio, capfd: pytest.CaptureFixture[str]) -> None:
    """If both nodes have damage, neither serves a checkpoint, and both serve their readable rows."""
    fill_both(trio)
    for ordinal in (0, 1):
        trio.damage(ordinal)
        read_damaged_rows(trio.nodes[ordinal])

    for ordinal in (0, 1):
        eventually("the heartbeat reports the damage", lambda: not reports_complete(trio, ordinal))  # noqa: B023
        eventually("it is there", lambda: replica_of(trio.nodes[ordinal]).opened)  # noqa: B023
        assert replica_of(trio.nodes[ordinal]).complete
    assert not events(capfd, "copied-from-peer")


def test_replica_that_could_not_be_opened_is_fetched_once_a_peer_is_complete(
    trio: Trio, capfd: pytest.CaptureFixture[str]
) -> None:
    """The peer became complete after this node had started."""
    trio.fill(0)
    first = trio.nodes[0]
    start_checks(first)

    def ruin() -> None:
        replica = replica_of(first)
        path = replica.store.path
        store = replica.detach_store("is gone")
        assert store is not None
        store.close()
        (path / "CURRENT").write_text("no manifest")
        fail_unopened(replica, f"{path} is damaged")

    first.on_loop(ruin)
    trio.fill(1)
    first.node.hydration.records_min = 1

    eventually("it is fetched", lambda: replica_of(first).opened)

    assert trio.source(0) == complete(trio.source(1))
    assert replica_of(first).failed is None
    assert events(capfd, "copy-thrown-away")


def test_damaged_replica_survives_a_kill_during_its_replacement(trio: Trio) -> None:
    """The staging directory is no store and the damaged store is in its place, so the next check replaces
    it."""
    fill_both(trio)
    trio.damage(0)
    path = replica_of(trio.nodes[0]).store.path
    incoming = path.with_name("p0000.incoming")
    (incoming / "files").mkdir(parents=True)
    (incoming / "files" / "CURRENT").write_bytes(b"MANIFEST-999999\n")
    read_damaged_rows(trio.nodes[0])

    eventually("it is fetched", lambda: replica_of(trio.nodes[0]).opened and not incoming.exists())

    assert trio.source(0).rows == trio.source(1).rows
    shutil.rmtree(incoming, ignore_errors=True)
