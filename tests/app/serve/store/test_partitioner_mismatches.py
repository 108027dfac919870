"""A partitioner that a record has contradicted stays contradicted."""

from __future__ import annotations

from pathlib import Path

import pytest

from queryable_app.serve.node import Node
from queryable_app.serve.store.partitioner_mismatches import PartitionerInUse
from queryable_app.wire.partitioners import ALGORITHMS
from tests.support.served import Served, served


def see(node: Served, *mismatches: int) -> None:
    """Another node says so of its records."""

    def note() -> None:
        replicas = node.node.replicas
        replicas.mismatches_elsewhere = (mismatches[0], mismatches[1], mismatches[2])
        replicas.note_mismatches()

    node.on_loop(note)


def test_what_another_node_has_seen_is_known_after_a_restart(tmp_path: Path) -> None:
    """It may be out of reach then, and a key would be looked for where it is not."""
    with served(tmp_path) as node:
        see(node, 1, 1, 0)
        settings = node.node.settings

    again = Node.open(settings)
    assert again.replicas.algorithm == "fnv1a"
    again.replicas.close()


def test_it_stays_known_when_nobody_shows_it_any_more(tmp_path: Path) -> None:
    """The copy that showed it may be on its way to another node, or be built anew."""
    with served(tmp_path) as node:
        see(node, 1, 1, 1)
        see(node, 0, 0, 0)
        assert node.node.replicas.algorithm == "scatter"


@pytest.mark.parametrize("text", ["", "[", "7", '[["murmur2"]]'], ids=["empty", "cut", "number", "nested"])
def test_what_cannot_be_read_leaves_no_partitioner_to_trust(tmp_path: Path, text: str) -> None:
    """Looking everywhere is slower, and right."""
    path = tmp_path / "file.json"
    path.write_text(text)

    assert PartitionerInUse(path).known == frozenset(ALGORITHMS)
