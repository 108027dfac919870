"""Test that a stalled replica is reported and its query restarted."""

from __future__ import annotations

from pathlib import Path

import pytest

from queryable_app.policy.stalls import PATIENCE_SECONDS
from queryable_app.serve.api.status import readiness, status_json
from queryable_app.serve.node import Node
from tests.support.node import open_node


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """Run a node whose replicas both lag by a record, while ingest reports that it streams."""
    opened = open_node(tmp_path, 2)
    opened.ingest_status.enter("streaming")
    for replica in opened.replicas.by_partition.values():
        replica.apply((), replica.state._replace(position=5))
        replica.note_end_offset(1, 9)
        replica.pending_record_offset = 5
    return opened


def watch(node: Node, seconds: float, moves: int | None = None) -> list[str]:
    """Check once a second, with a record for the partition `moves` each time; return what was restarted."""
    restarts: list[str] = []
    node.watchdog.restart = lambda: restarts.append("restart")
    began = 1000.0 + 10_000 * len(node.watchdog._watches)
    for second in range(int(seconds)):
        if moves is not None:
            replica = node.replicas.by_partition[moves]
            replica.apply((), replica.state._replace(position=replica.position + 1))
            replica.pending_record_offset = replica.position
        node.watchdog.look(began + second)
    return restarts


def test_stalled_replica_is_reported_and_its_query_restarted(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status, readyz and the log name it within thirty seconds. A replica that moves is not stalled."""
    assert watch(node, 30, moves=1) == ["restart"]

    assert [bool(p["stalled"]) for p in status_json(node)["partitions"]] == [True, False]
    assert readiness(node)["stalled"] == [0]
    assert node.watchdog.restarts == 1
    logged = capsys.readouterr().err
    assert '"event": "stalled"' in logged
    assert '"partition": 0' in logged
    node.replicas.close()


@pytest.mark.parametrize(
    "why", ["starting", "paused", "no record", "retrying", "dead letters", "not started", "failed"]
)
def test_replica_with_a_reason_to_wait_is_not_stalled(node: Node, why: str) -> None:
    """A starting query, a full disk, a gap, a store that is retried and waiting dead letters are no stall."""
    for replica in node.replicas.by_partition.values():
        if why == "no record":
            replica.pending_record_offset = 4
        elif why == "retrying":
            replica.suspend("full")
        elif why == "failed":
            replica.fail("a bad record")
        elif why == "not started":
            replica.accepts_slices = False
        elif why == "dead letters":
            node.dead_letters.waiting[replica.partition] = None  # type: ignore[assignment]
    if why == "starting":
        node.ingest_status.enter("starting")
    elif why == "paused":
        node.replicas.paused = "all"

    assert watch(node, 4 * PATIENCE_SECONDS) == []
    node.replicas.close()


def test_stall_ends_when_the_position_moves(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    """The log has a line, and status no longer names the replica."""
    watch(node, 30)
    for replica in node.replicas.by_partition.values():
        replica.apply((), replica.state._replace(position=6))
    watch(node, 2)

    assert node.watchdog.stalled == {}
    assert capsys.readouterr().err.count('"event": "stall-ended"') == 2
    node.replicas.close()
