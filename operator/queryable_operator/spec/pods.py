"""Convert between the nodes of a revision, which placements count, and the pods that Kubernetes counts, and locate them.

A pod with W workers is W nodes: pod P is the nodes P*W to P*W+W-1, each with a port of its own. No other file of the operator
multiplies or divides by the number of workers. A revision keeps the number that it was made with, because its disks are divided
by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NewType

from queryable_app.contract import DEFAULT_PORT, WORKERS_MAX

PodIndex = NewType("PodIndex", int)
"""The number of a pod in its StatefulSet. A plain int is an ordinal of a placement, which is a node's."""


@dataclass(frozen=True, slots=True)
class PodLayout:
    """Describe how the nodes of a revision are divided into pods."""

    workers: int = 1
    """Nodes in each pod."""

    tls: bool = False
    """Whether the nodes speak TLS."""

    @staticmethod
    def of(spec: Mapping[str, Any]) -> PodLayout:
        """Return the layout of a revision from the spec that it records."""
        return PodLayout(stated_workers(spec) or 1, spec.get("tls") is not None)

    @property
    def scheme(self) -> str:
        return "https" if self.tls else "http"

    def pod_of(self, ordinal: int) -> PodIndex:
        return PodIndex(ordinal // self.workers)

    def nodes_of(self, pod: PodIndex) -> range:
        """Return the ordinals of a pod's nodes."""
        return range(pod * self.workers, (pod + 1) * self.workers)

    def nodes_in(self, pods: Iterable[PodIndex]) -> frozenset[int]:
        """Return the ordinals of all nodes in these pods."""
        return frozenset(ordinal for pod in pods for ordinal in self.nodes_of(pod))

    def nodes(self, pods: int) -> range:
        """Return the ordinals of all nodes in the first pods."""
        return range(pods * self.workers)

    def pods_with(self, nodes: int) -> int:
        """Return how many pods have the first `nodes` nodes."""
        return -(-nodes // self.workers)

    @property
    def worker_ports(self) -> Mapping[str, int]:
        """Return the own port of each worker by its name. Empty: the one node has the pod's port."""
        return {f"worker-{k}": _port(k) for k in range(self.workers)} if self.workers > 1 else {}

    @property
    def ports_text(self) -> str:
        """Return the workers' own ports as a pod's settings have them."""
        return ",".join(str(port) for port in self.worker_ports.values())

    def port_of(self, ordinal: int) -> int:
        """Return the port of a node in its pod."""
        return _port(ordinal % self.workers) if self.workers > 1 else DEFAULT_PORT

    @property
    def noun(self) -> str:
        """Return what messages call a pod."""
        return "node" if self.workers == 1 else "pod"

    def title(self, ordinal: int, pod_name: str) -> str:
        """Return how messages name a node."""
        return f"node {ordinal}" if self.workers == 1 else f"node {ordinal} in {pod_name}"


def stated_workers(spec: Mapping[str, Any]) -> int | None:
    """Return the valid number of workers that a spec states, if any."""
    serve = spec.get("serve")
    workers = serve.get("workers") if isinstance(serve, Mapping) else None
    return workers if isinstance(workers, int) and 1 <= workers <= WORKERS_MAX else None


def _port(worker: int) -> int:
    return DEFAULT_PORT + 1 + worker
