"""Play ingest's end of a node's control socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from queryable_app.contract import CONTROL_SOCKET
from queryable_app.serve.node import Node
from tests.support.node import open_node


class Ingest:
    """Send and receive messages as ingest does."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, **message: Any) -> None:
        self.writer.write(json.dumps(message).encode() + b"\n")

    async def receive(self) -> dict[str, Any]:
        async with asyncio.timeout(5):
            return dict(json.loads(await self.reader.readline()))

    async def closed(self) -> bool:
        try:
            async with asyncio.timeout(5):
                return await self.reader.read() == b""
        except ConnectionResetError:
            return True

    async def start(self, id: str = "T1", earliest: int = 0, latest: int = 100) -> dict[str, Any]:
        """Report the topic, and return the start that serve sends."""
        partitions = range(2)
        self.send(
            type="topic",
            id=id,
            partitions=2,
            earliest={str(p): earliest for p in partitions},
            latest={str(p): latest for p in partitions},
        )
        return await self.receive()


@asynccontextmanager
async def node_running(tmp_path: Path, **spec: Any) -> AsyncIterator[Node]:
    node = open_node(tmp_path, 2, **spec)
    await node.start()
    try:
        yield node
    finally:
        await node.stop()


async def ingest(node: Node, pid: int = 77) -> Ingest:
    client = Ingest(*await asyncio.open_unix_connection(Path(node.settings.run_dir) / CONTROL_SOCKET))
    client.send(type="hello", protocol=1, pid=pid)
    assert await client.receive() == {"type": "wanted", "topic": "users", "partitions": [0, 1]}
    return client


@asynccontextmanager
async def connected(tmp_path: Path, **spec: Any) -> AsyncIterator[tuple[Node, Ingest]]:
    """Run a node with one ingest that has received the wanted partitions."""
    async with node_running(tmp_path, **spec) as node:
        client = await ingest(node)
        try:
            yield node, client
        finally:
            client.writer.close()
