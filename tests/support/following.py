"""Run a node that follows placements over real stores and sockets, with a simulated other node where one is needed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from queryable_app.placement.assignment import Placement
from queryable_app.serve.node import Node
from queryable_app.serve.replication.assigned_replicas import AssignedReplicas
from queryable_app.serve.store.shared_memory import SharedMemory
from queryable_app.serve.store.store import Store
from queryable_app.wire.disk_format import Identity, ReplicaState, Row, encode_row
from tests.support.node import APPLICATION_ID, node_settings

PARTITIONS = 3


def placed(
    epoch: int, serving: Sequence[Sequence[int]], hydrating: Sequence[Sequence[int]] = ((), (), ())
) -> Placement:
    """Return a placement on two nodes; this node is the first."""
    return Placement(
        epoch,
        APPLICATION_ID,
        ("http://127.0.0.1:8080", "http://127.0.0.1:8081"),
        tuple(map(tuple, serving)),
        tuple(map(tuple, hydrating)),
    )


HERE = placed(1, [[0], [0], [0]])
WITHOUT_1 = placed(2, [[0], [1], [0]])


class OtherNode:
    """Serve checkpoints of `rows` rows, or none, once the test lets it continue."""

    def __init__(self, settings: Any, rows: int) -> None:
        self.settings, self.rows = settings, rows
        self.fetched: list[int] = []
        self.go_on = asyncio.Event()

    async def fetch(self, partition: int, into: Path, replace_damaged: bool = False) -> bool:
        self.fetched.append(partition)
        await self.go_on.wait()
        if self.rows:
            fill(into, partition, self.rows)
        return self.rows > 0


def fill(path: Path, partition: int, rows: int) -> None:
    store = Store.open(path, Identity(APPLICATION_ID, "users", partition), SharedMemory())
    puts = [(b"key-%06d" % n, encode_row(Row(n, 1, 0, b"%d" % n))) for n in range(rows)]
    store.apply(puts, ReplicaState(rows, rows=rows))
    store.close()


def path_of(node: Node, partition: int) -> Path:
    return Path(node.settings.data_dir, APPLICATION_ID, f"p{partition:04d}")


def open_node(tmp_path: Path, first: Placement) -> Node:
    settings = node_settings(tmp_path, PARTITIONS)
    Path(settings.placement_path).write_text(first.to_json())
    return Node.open(settings)


@asynccontextmanager
async def node_running(
    tmp_path: Path,
    first: Placement = HERE,
    other: int | None = None,
    start: bool = True,
    removal_delay_seconds: float = 0.05,
    cleanup_delay_seconds: float = 0,
) -> AsyncIterator[Node]:
    """Run a node. `other` is the number of rows in the checkpoints of the other node; None means that there is no other node."""
    node = open_node(tmp_path, first)
    settings = node.settings
    node.assigned_replicas = AssignedReplicas(
        settings,
        "users",
        node.replicas,
        node.memory,
        node.peers,
        node.hydration if other is None else OtherNode(settings, other),
        node._control.announce,
        removal_delay_seconds,
        cleanup_delay_seconds,
    )
    try:
        if start:
            await node.start()
        yield node
    finally:
        await node.stop()


def other_of(node: Node) -> OtherNode:
    other = node.assigned_replicas._builder.hydration
    assert isinstance(other, OtherNode)
    return other
