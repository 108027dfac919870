"""Three nodes that serve one topic of six partitions. Real stores, real ports, no Kafka."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from queryable_app.placement.assignment import Placement, initial_placement
from queryable_app.wire.partitioners import partition_for
from tests.support.served import Served, served

TOKEN = "between-nodes"


class Cluster:
    """Three nodes of a topic with six partitions. They can be stopped one by one."""

    def __init__(self, directory: Path, replicas: int, **spec: Any) -> None:
        listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
        addresses = [f"http://127.0.0.1:{listener.getsockname()[1]}" for listener in listeners]
        self.placement: Placement = initial_placement("tests.users.r1", 6, addresses, replicas)
        directory.mkdir(exist_ok=True)
        token = directory / "token"
        token.write_text(TOKEN)
        self._stacks = [ExitStack() for _ in listeners]
        self.nodes: list[Served] = [
            stack.enter_context(
                served(
                    directory / f"node-{ordinal}",
                    ordinal=ordinal,
                    placement=self.placement,
                    listener=listener,
                    settings={"internal_token_path": str(token)},
                    **spec,
                )
            )
            for ordinal, (stack, listener) in enumerate(zip(self._stacks, listeners, strict=True))
        ]

    def put(self, key: bytes, value: bytes | None, partition: int | None = None, **more: Any) -> None:
        """To every copy of the partition."""
        where = partition_for(key, "murmur2", 6) if partition is None else partition
        for ordinal in self.placement.serving[where]:
            self.nodes[ordinal].put(key, value, partition=where, **more)

    def stop(self, ordinal: int) -> None:
        self._stacks[ordinal].close()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        for stack in self._stacks:
            stack.close()
