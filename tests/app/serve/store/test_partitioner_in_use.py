"""A partitioner mismatch counts for the life of the revision."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from queryable_app.serve.node import Node
from queryable_app.serve.store.partitioner_in_use import PartitionerInUse
from queryable_app.wire.partitioners import ALGORITHMS
from tests.support.served import Served, served


def report_mismatches(node: Served, *mismatches: int) -> None:
    """Report the counts of a peer, as its heartbeat does."""
    counts = (mismatches[0], mismatches[1], mismatches[2])
    node.on_loop(lambda: node.node.replicas.partitioner.note_counts("node 1", counts))


def test_mismatch_of_a_peer_survives_a_restart(tmp_path: Path) -> None:
    """A restarted node uses the same partitioner while its peers are unreachable."""
    with served(tmp_path) as node:
        report_mismatches(node, 1, 1, 0)
        settings = node.node.settings

    again = Node.open(settings)
    assert again.replicas.partitioning.algorithm == "fnv1a"
    again.replicas.close()


def test_mismatch_counts_after_its_replica_is_removed(tmp_path: Path) -> None:
    """A mismatch counts although its replica has moved to another node or been rebuilt."""
    with served(tmp_path) as node:
        report_mismatches(node, 1, 1, 1)
        report_mismatches(node, 0, 0, 0)
        assert node.node.replicas.partitioning.algorithm == "scatter"


@pytest.mark.parametrize("text", ["", "[", "7", '[["murmur2"]]'], ids=["empty", "cut", "number", "nested"])
def test_unreadable_file_makes_every_read_scatter(tmp_path: Path, text: str) -> None:
    """To look into every partition is slower, and right."""
    path = tmp_path / "file.json"
    path.write_text(text)

    assert PartitionerInUse("auto", 6, path).mismatched == frozenset(ALGORITHMS)


def test_unwritten_mismatch_is_written_with_the_next_report(tmp_path: Path) -> None:
    """A mismatch counts in memory at once, and is on disk as soon as the disk accepts it."""
    path = tmp_path / "directory" / "file.json"
    partitioner = PartitionerInUse("auto", 6, path)
    path.parent.write_text("no directory")
    partitioner.note_counts("node 1", (3, 0, 0))
    assert (partitioner.partitioning.algorithm, path.exists()) == ("crc32", False)

    path.parent.unlink()
    partitioner.note_counts("node 1", (4, 0, 0))
    assert json.loads(path.read_text()) == ["murmur2"]


def test_change_of_the_partitioner_is_logged_with_all_counts(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The event `partitioner` sums the latest counts of every source up; a name alone may change it too."""
    partitioner = PartitionerInUse("auto", 6, tmp_path / "file.json")
    partitioner.note_counts("this node", (0, 5, 0))
    partitioner.note_counts("node 1", (2, 1, 0))
    partitioner.note_mismatched({"fnv1a", "of a later version"})

    events = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    changes = [(event["was"], event["now"], event["contradicting_crc32"]) for event in events]
    assert changes == [("murmur2", "fnv1a", 6), ("fnv1a", "scatter", 6)]
