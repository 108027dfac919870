"""Run a server for the read benchmarks: one store, three ways to put HTTP in front of it.

    python -m bench.server fill DIR KEYS
    python -m bench.server node|token|tls|both|asgi|fastapi DIR PORT

`node` is the product, `tls` the product with the certificate in DIR/secret, `token` the product that requires tokens of the
secret in DIR/jwt, and `both` has both. `asgi` and `fastapi` are the shortest handlers that give the very same answer,
freshness headers and all, through a raw ASGI application and through a FastAPI route.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any, NamedTuple

import uvicorn
import uvloop
from fastapi import FastAPI, Response

from queryable_app.contract import NodeSettings
from queryable_app.placement.assignment import initial_placement
from queryable_app.platform.clock import monotonic_ms
from queryable_app.serve.api.app import create_app
from queryable_app.serve.base.allocator import return_large_blocks
from queryable_app.serve.http.protocol import protocol_class
from queryable_app.serve.http.tls_listener import TlsServer
from queryable_app.serve.node import Node
from queryable_app.serve.reads.point import Reads
from queryable_app.wire.disk_format import ReplicaState, Row, encode_row
from queryable_app.wire.partitioners import partition_for
from tests.support import tokens


class Kind(NamedTuple):
    """How clients reach the product."""

    token: bool
    tls: bool


KINDS = {
    "node": Kind(False, False),
    "token": Kind(True, False),
    "tls": Kind(False, True),
    "both": Kind(True, True),
}
PARTITIONS = 4
TOPIC = "bench"
SECRET = "secret"
JWT = "jwt"


def key_of(number: int) -> bytes:
    return b"%016x" % (number * 2654435761 % 2**48)


def value_of(number: int) -> bytes:
    return b'{"name":"customer","status":"active","amount":12345.67,"city":"Munich","pad":"%022d"}' % number


def bearer() -> str:
    """Return the `Authorization` of a caller that may read."""
    return tokens.bearer()["authorization"]


def settings(directory: Path, port: int, kind: Kind = KINDS["node"]) -> NodeSettings:
    placement = directory / "placement.json"
    url = f"{'https' if kind.tls else 'http'}://127.0.0.1:{port}"
    placement.write_text(initial_placement("bench.r1", PARTITIONS, [url], 1).to_json())
    spec = directory / "spec.json"
    secured: dict[str, Any] = {"tls": {"secretRef": {"name": "tls"}}} if kind.tls else {}
    if kind.token:
        rules = [{"claim": "scope", "contains": "read", "allow": ["read"]}]
        secured["auth"] = {"jwt": tokens.SECRET_REF, "rules": rules}
    spec.write_text(json.dumps({"kafka": {"bootstrapServers": "127.0.0.1:1"}, "topic": TOPIC, **secured}))
    return NodeSettings(
        name="bench-0",
        ordinal=0,
        application_id="bench.r1",
        spec_path=str(spec),
        bootstrap_servers="127.0.0.1:1",
        advertised_url=url,
        data_dir=str(directory),
        run_dir=str(directory),
        placement_path=str(placement),
        http_host="127.0.0.1",
        http_port=port,
        tls_dir=str(directory / SECRET) if kind.tls else "",
        auth_secret_dir=str(directory / JWT) if kind.token else "",
    )


def fill(directory: Path, keys: int) -> None:
    node = Node.open(settings(directory, 1))
    by_partition: list[list[int]] = [[] for _ in range(PARTITIONS)]
    for number in range(keys):
        by_partition[partition_for(key_of(number), "murmur2", PARTITIONS)].append(number)
    now_ms = time.time_ns() // 1_000_000
    for partition, numbers in enumerate(by_partition):
        store = node.replicas.by_partition[partition].store
        for start in range(0, len(numbers), 1000):
            slice_ = enumerate(numbers[start : start + 1000], start)
            puts = [(key_of(n), encode_row(Row(offset, now_ms, 0, value_of(n)))) for offset, n in slice_]
            position = start + len(puts)
            state = ReplicaState(position, True, position, last_timestamp_ms=now_ms, mismatches=(0, 1, 1))
            store.apply(puts, state)
    node.replicas.close()


def opened(directory: Path, port: int, kind: Kind = KINDS["node"]) -> Node:
    node = Node.open(settings(directory, port, kind))
    node.replicas.note_mismatches()
    return node


async def fresh(node: Node) -> None:
    """Replace the look-up of end offsets by the positions of the replicas."""
    while True:
        for replica in node.replicas.by_partition.values():
            replica.note_end_offset(monotonic_ms(), replica.position)
        await asyncio.sleep(0.5)


Scope = MutableMapping[str, Any]


def raw_asgi(node: Node) -> Callable[..., Awaitable[None]]:
    reads = Reads(node)

    async def application(scope: Scope, receive: Callable[..., Any], send: Callable[..., Any]) -> None:
        answer = reads.point(scope["raw_path"][9:], reads.defaults)
        start = {"type": "http.response.start", "status": answer.status, "headers": answer.header_list()}
        await send(start)
        await send({"type": "http.response.body", "body": answer.body})

    return application


def fastapi_route(node: Node) -> FastAPI:
    reads = Reads(node)
    application = FastAPI()

    @application.get("/v1/keys/{key}")
    async def read(key: str) -> Response:
        answer = reads.point(key.encode(), reads.defaults)
        headers = {name.decode(): value.decode() for name, value in answer.header_list()}
        return Response(answer.body, answer.status, headers)

    return application


async def serve(kind: str, directory: Path, port: int) -> None:
    node = opened(directory, port, KINDS.get(kind, KINDS["node"]))
    if kind in KINDS:
        await serve_node(node, port)
    else:
        application = raw_asgi(node) if kind == "asgi" else fastapi_route(node)
        await _serve(node, uvicorn.Config(application, http="httptools", **_options(port)))


async def serve_node(node: Node, port: int) -> None:
    """Serve a node's API, and keep its replicas fresh, until a signal."""
    await _serve(node, uvicorn.Config(create_app(node), http=protocol_class(node), **_options(port)))


async def _serve(node: Node, config: uvicorn.Config) -> None:
    keeper = asyncio.create_task(fresh(node))
    server = TlsServer(config, node.tls, node.counters, node.settings.head_seconds_max)
    sockets = [socket.create_server(("127.0.0.1", config.port), backlog=2048)] if node.tls else None
    await server.serve(sockets)
    keeper.cancel()


def _options(port: int) -> dict[str, Any]:
    return {
        "host": "127.0.0.1",
        "port": port,
        "lifespan": "off",
        "access_log": False,
        "log_level": "warning",
    }


if __name__ == "__main__":
    return_large_blocks()  # as every node does
    command, where, number = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    if command == "fill":
        fill(where, number)
    else:
        uvloop.run(serve(command, where, number))
