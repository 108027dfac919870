"""How a node divides the descriptors of its process: stores and other nodes first, clients get what is left.

A store without a descriptor cannot write, and a node without one cannot call another; a client without one opens its
connection later. So the bound on client connections follows from the limit, and not the other way round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

STORE_FILES_MIN: Final = 32
"""Table files that a store keeps open at least."""

CONNECTIONS_RESERVE: Final = 32
"""Connections over the bound, for probes and other nodes."""

_PROCESS: Final = 48  # standard streams, the event loop, listeners, locks, files that are read for a moment
_KAFKA: Final = 32  # four clients, with a connection to each broker that they need
_TRANSFERS: Final = 48  # two fetched replicas at a time, and what is read for other nodes
_STORE: Final = 24  # a store's own files beside its tables, and the tasks of ingest that write to it
_STORE_FILES_MAX: Final = 65_536
_NODE: Final = 4  # heartbeats, and plain reads that are forwarded
_NODE_CONNECTIONS: Final = (8, 512)
_CONNECTIONS_MIN: Final = 16

# Measured with Spark 4.2: its JVM had at most 346, 387 and 653 descriptors open while it read 1, 4 and 50 partitions. With a
# limit a little below that it starts, and some of the partitions are never read.
_JVM: Final = 370
_READ: Final = 6  # a consumer's sockets and selector, and a writer's connection to serve
_REHEARSAL: Final = 1  # reads a partition beside the query


@dataclass(frozen=True, slots=True)
class DescriptorPlan:
    """Each number is the most there may be at one time."""

    limit: int
    store_files: int
    """Table files that one store keeps open."""
    node_connections: int
    """Connections to one other node, for requests that it answers."""
    reserved: int
    """Descriptors that are not for client connections."""
    connections: int
    """Client connections."""

    @property
    def fits(self) -> bool:
        return self.reserved + self.connections <= self.limit


def plan_descriptors(
    limit: int, *, partitions: int, stores: int, other_nodes: int, connections_max: int
) -> DescriptorPlan:
    """`partitions` are the view's, since any of them may move here; `stores` are the ones that are here now."""
    store_files = max(STORE_FILES_MIN, min(limit // 2 // max(1, partitions), _STORE_FILES_MAX))
    fewest, most = _NODE_CONNECTIONS
    node_connections = max(fewest, min(limit // 16 // max(1, other_nodes), most))
    reserved = _PROCESS + _KAFKA + _TRANSFERS + CONNECTIONS_RESERVE
    reserved += stores * (_STORE + store_files) + other_nodes * (_NODE + node_connections)
    connections = min(connections_max, max(_CONNECTIONS_MIN, limit - reserved))
    return DescriptorPlan(limit, store_files, node_connections, reserved, connections)


def ingest_descriptors(partitions: int) -> int:
    """Return how many descriptors the JVM of ingest needs to read so many partitions."""
    return _JVM + _READ * (partitions + _REHEARSAL)


def descriptor_shortage(limit: int, partitions: int) -> str | None:
    """Return what to do when the limit is too low for the JVM of ingest, None when it is high enough."""
    needed = ingest_descriptors(partitions)
    if limit >= needed:
        return None
    return (
        f"the limit of open files (RLIMIT_NOFILE) is {limit}, and Spark needs {needed} for one node with {partitions} of "
        "the partitions: raise the hard limit, with ulimit -Hn in a shell, LimitNOFILE for a service or a container "
        "runtime, or --ulimit nofile in Docker"
    )
