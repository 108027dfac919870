"""Run the nodes of a view for the tests of the client: filled, hung, or with a lagging replica."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from queryable_app.wire.partitioners import partition_for
from tests.support.node_cluster import NodeCluster
from tests.support.served import Served

PARTITIONS = 6
KEYS = [f"key-{n:03d}" for n in range(100)]


def filled(nodes: NodeCluster) -> NodeCluster:
    """Put every key with its number as the value."""
    for number, key in enumerate(KEYS):
        nodes.put(key.encode(), b"%d" % number)
    return nodes


@contextmanager
def hung(nodes: NodeCluster, ordinal: int) -> Iterator[None]:
    """Replace a node by a server that accepts connections and never answers."""
    nodes.stop(ordinal)
    with socket.create_server(("127.0.0.1", nodes.nodes[ordinal].port)):
        yield


def behind(nodes: NodeCluster) -> tuple[str, Served, Served]:
    """Return a key whose second replica lags one record behind the first."""
    key = KEYS[0]
    where = partition_for(key.encode(), "murmur2", PARTITIONS)
    first, second = (nodes.nodes[ordinal] for ordinal in nodes.placement.serving[where])
    second.put(key.encode(), b'"old"', partition=where)
    first.put(key.encode(), b'"old"', partition=where)
    first.put(key.encode(), b'"new"', partition=where)
    return key, first, second
