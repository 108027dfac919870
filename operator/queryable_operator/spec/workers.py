"""Decide how many workers the pods of a revision have."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from queryable_app.config.topic_spec import SpecError
from queryable_app.contract import WORKERS_MAX
from queryable_operator.spec.pods import PodLayout, stated_workers
from queryable_operator.spec.quantity import quantity
from queryable_operator.spec.requirements import serve_memory_max

NODES_MAX: Final = 1000
"""The most nodes that a placement names."""


def desired_workers(spec: Mapping[str, Any], partitions: int, recorded: int | None = None) -> int:
    """Return how many workers a revision of this spec has in each pod.

    A spec that states no number keeps the `recorded` one of an existing revision, so neither a release of the operator nor a
    change of the CPUs makes a revision. A worker beyond the partitions would have nothing to do.
    """
    stated = stated_workers(spec)
    if stated is None and recorded is not None:
        return recorded
    wanted = _default_workers(spec) if stated is None else stated
    return max(1, min(wanted, partitions))


def with_workers(spec: Mapping[str, Any], workers: int) -> dict[str, Any]:
    """Return the spec as a revision with this number of workers records it. The number one is not recorded: revisions of
    earlier releases record none."""
    serve = {name: value for name, value in spec.get("serve", {}).items() if name != "workers"}
    if workers > 1:
        serve["workers"] = workers
    rest = {name: value for name, value in spec.items() if name != "serve"}
    return {**rest, "serve": serve} if serve else rest


def check_nodes(pods: int, layout: PodLayout) -> None:
    """Reject more nodes than a placement can name."""
    if len(layout.nodes(pods)) > NODES_MAX:
        raise SpecError(
            f"spec.replicas: {pods} pods with {layout.workers} workers each are more than {NODES_MAX} nodes"
        )


def _default_workers(spec: Mapping[str, Any]) -> int:
    """Return a worker for each whole CPU of the container `serve`, as far as its memory limit suffices."""
    resources = spec.get("podTemplate", {}).get("resources", {}).get("serve", {})
    limits, requests = resources.get("limits", {}), resources.get("requests", {})
    cpu = limits.get("cpu", requests.get("cpu", 1))
    memory = quantity(limits["memory"]) if "memory" in limits else math.inf
    for workers in range(min(int(quantity(cpu)), WORKERS_MAX), 1, -1):
        layout = PodLayout(workers)
        if serve_memory_max(layout) <= memory and len(layout.nodes(spec["replicas"])) <= NODES_MAX:
            return workers
    return 1
