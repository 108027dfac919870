"""Divide the descriptors of a node's process: first for stores and other nodes, then for clients.

A store without a descriptor cannot write, and a node without one cannot call another. A client without one connects later. So
the bound on client connections follows from the limit of the process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

STORE_FILES_MIN: Final = 32
"""The minimum of table files that a store keeps open."""

CONNECTIONS_RESERVE: Final = 32
"""Connections above the bound, for probes and other nodes."""

HANDSHAKES_MAX: Final = 128
"""TLS connections that are not open to requests yet."""

_PROCESS: Final = 48  # standard streams, the event loop, listeners, locks, files in short use
_KAFKA: Final = 32  # four clients, with a connection to each broker
_TRANSFERS: Final = 48  # two checkpoint fetches at a time, and checkpoints for other nodes
_STORE: Final = 24  # a store's own files beside its tables, and the tasks of ingest that write to it
_STORE_FILES_MAX: Final = 65_536
_NODE: Final = 4  # heartbeats, and forwarded plain reads
_NODE_CONNECTIONS: Final = (8, 512)
_CONNECTIONS_MIN: Final = 16

# Measured with Spark 4.2: its JVM had at most 346, 387 and 653 descriptors open while it read 1, 4 and 50 partitions. With a
# slightly lower limit it starts and never reads some partitions.
_JVM: Final = 370
_READ: Final = 6  # a consumer's sockets and selector, and a writer's connection to serve
_REHEARSAL: Final = 1  # reads a partition beside the query


@dataclass(frozen=True, slots=True)
class DescriptorPlan:
    """Set the maximum of each kind of descriptor."""

    limit: int
    store_files: int
    """Table files that one store keeps open."""
    node_connections: int
    """Connections to one other node, for requests to it."""
    reserved: int
    """Descriptors for anything but client connections."""
    connections: int
    """Client connections."""

    @property
    def fits(self) -> bool:
        return self.reserved + self.connections <= self.limit


def plan_descriptors(
    limit: int, *, partitions: int, stores: int, other_nodes: int, connections_max: int, tls: bool = False
) -> DescriptorPlan:
    """Plan for the view's `partitions`, any of which may move here, and for the `stores` that the node has now."""
    store_files = max(STORE_FILES_MIN, min(limit // 2 // max(1, partitions), _STORE_FILES_MAX))
    fewest, most = _NODE_CONNECTIONS
    node_connections = max(fewest, min(limit // 16 // max(1, other_nodes), most))
    reserved = _PROCESS + _KAFKA + _TRANSFERS + CONNECTIONS_RESERVE
    reserved += stores * (_STORE + store_files) + other_nodes * (_NODE + node_connections)
    reserved += HANDSHAKES_MAX if tls else 0
    connections = min(connections_max, max(_CONNECTIONS_MIN, limit - reserved))
    return DescriptorPlan(limit, store_files, node_connections, reserved, connections)


def ingest_descriptors(partitions: int) -> int:
    """Return the descriptors that the JVM of ingest needs for a number of partitions."""
    return _JVM + _READ * (partitions + _REHEARSAL)


def descriptor_shortage(limit: int, partitions: int) -> str | None:
    """Return what to do if the limit is too low for the JVM of ingest, or None if it is high enough."""
    needed = ingest_descriptors(partitions)
    if limit >= needed:
        return None
    return (
        f"the limit of open files (RLIMIT_NOFILE) is {limit}, and Spark needs {needed} for one node with {partitions} of "
        "the partitions: raise the hard limit, with ulimit -Hn in a shell, LimitNOFILE for a service or a container "
        "runtime, or --ulimit nofile in Docker"
    )
