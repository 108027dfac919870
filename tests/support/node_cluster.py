"""Start several nodes of one view, with real stores and real ports. There is no Kafka."""

from __future__ import annotations

import socket
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from queryable_app.placement.assignment import Placement, initial_placement
from queryable_app.wire.partitioners import partition_for
from tests.support.served import Served, served

APPLICATION_ID = "tests.users.r1"
TOKEN = "between-nodes"


def listen(nodes: int) -> list[socket.socket]:
    return [socket.create_server(("127.0.0.1", 0)) for _ in range(nodes)]


def address_of(listener: socket.socket) -> str:
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


def token_settings(directory: Path) -> dict[str, Any]:
    """Write the token that all nodes of the view have, and return the setting that names its file."""
    directory.mkdir(exist_ok=True)
    (directory / "token").write_text(TOKEN)
    return {"internal_token_path": str(directory / "token")}


class NodeCluster:
    """Run nodes, by ordinal. Each can be stopped and started again on its own port."""

    def __init__(
        self,
        directory: Path,
        placements: Sequence[Placement],
        complete: Collection[int] | None = None,
        settings: dict[str, Any] | None = None,
        **spec: Any,
    ) -> None:
        """Give each node its placement with the real addresses. The `complete` nodes, by default all, have complete replicas."""
        listeners = listen(len(placements))
        scheme = "https" if "tls" in spec else "http"
        self.addresses = [address_of(listener).replace("http", scheme, 1) for listener in listeners]
        self.directory = directory
        self._placements = [replace(each, addresses=tuple(self.addresses)) for each in placements]
        self._complete = range(len(placements)) if complete is None else complete
        self._settings = token_settings(directory) | (settings or {})
        self._spec = spec
        self._stacks = [ExitStack() for _ in placements]
        self.nodes = [self._open(ordinal, listener) for ordinal, listener in enumerate(listeners)]

    @property
    def placement(self) -> Placement:
        """Return the placement of the first node."""
        return self._placements[0]

    def _open(self, ordinal: int, listener: socket.socket) -> Served:
        node = served(
            self.directory / f"node-{ordinal}",
            ordinal=ordinal,
            placement=self._placements[ordinal],
            listener=listener,
            complete=ordinal in self._complete,
            settings=self._settings,
            **self._spec,
        )
        return self._stacks[ordinal].enter_context(node)

    def put(self, key: bytes, value: bytes | None, partition: int | None = None, **more: Any) -> None:
        """Write a record to every serving replica of the partition."""
        if partition is None:
            partition = partition_for(key, "murmur2", self.placement.partitions)
        for ordinal in self.placement.serving[partition]:
            self.nodes[ordinal].put(key, value, partition=partition, **more)

    def contribute(self, key: bytes, types: str, inputs: Sequence[Any], partition: int | None = None) -> None:
        """Write a record of an aggregated view to every serving replica of the partition."""
        if partition is None:
            partition = partition_for(key, "murmur2", self.placement.partitions)
        for ordinal in self.placement.serving[partition]:
            self.nodes[ordinal].contribute(key, types, inputs, partition=partition)

    def algorithms(self) -> set[str]:
        """Return the algorithms by which the nodes find a key's partition."""
        return {node.node.replicas.partitioning.algorithm for node in self.nodes}

    def stop(self, ordinal: int) -> None:
        self._stacks[ordinal].close()

    def start(self, ordinal: int) -> None:
        port = self.nodes[ordinal].port
        self.nodes[ordinal] = self._open(ordinal, socket.create_server(("127.0.0.1", port)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for stack in self._stacks:
            stack.close()


def node_cluster(directory: Path, nodes: int, replicas: int, **spec: Any) -> NodeCluster:
    """Start nodes that serve six partitions, with so many replicas of each."""
    placement = initial_placement(APPLICATION_ID, 6, [str(n) for n in range(nodes)], replicas)
    return NodeCluster(directory, [placement] * nodes, **spec)


def three_nodes(directory: Path, replicas: int, **spec: Any) -> NodeCluster:
    return node_cluster(directory, 3, replicas, **spec)
