"""Compute the resource requirements of a node's two containers and of the rekey job's, unless the resource states them.

A container's memory is what was measured of the process plus what it may fill. The limit of `serve` also covers all client
requests in progress. For `ingest` and `rekey` the heap and the JVM's memory beside it both fill up sooner or later. There is no
CPU limit: throttling would stop a node for tenths of a second on an idle machine.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any, Final

from queryable_app.config.topic_spec import SpecError
from queryable_app.contract import NodeSettings, worker_settings
from queryable_operator.spec.pods import PodLayout
from queryable_operator.spec.quantity import quantity
from queryable_operator.spec.rekeying import is_rekeyed

CONTAINERS: Final = ("serve", "ingest", "rekey")
_WITH_JVM: Final = ("ingest", "rekey")

_MIB: Final = 1024 * 1024
_SERVE_MIB: Final = 150  # the interpreter and its libraries, without caches
_PARENT_MIB: Final = 40  # the process that starts several workers
_SERVE_SPARE_MIB: Final = 128  # retained by the allocator, and short peaks of large reads
_INGEST_MIB: Final = 640  # Python, and the JVM beside its heap
_HEAP_MIN_MIB: Final = 512  # Spark itself needs 450 of what garbage collectors leave it
_HEAP: Final = re.compile(r"([0-9]+)([kmg])", re.IGNORECASE)
_HEAP_BYTES: Final = {"k": 1024, "m": _MIB, "g": 1024 * _MIB}


def requirements(spec: Mapping[str, Any], container: str) -> Mapping[str, Any]:
    """Return a container's ResourceRequirements. Requirements in the resource replace the computed ones. `spec` is what a
    revision records."""
    given = _given(spec, container)
    if given:
        return given
    return _of_serve(PodLayout.of(spec)) if container == "serve" else _of_jvm(spec["ingest"]["driverMemory"])


def check_requirements(spec: Mapping[str, Any]) -> None:
    """Reject requirements that the API server would reject only with the StatefulSet, or with which the JVM cannot start or is
    killed."""
    heap = spec["ingest"]["driverMemory"]
    if _heap_bytes(heap) < _HEAP_MIN_MIB * _MIB:
        raise SpecError(f"spec.ingest.driverMemory: Spark needs at least {_HEAP_MIN_MIB}m")
    for container in CONTAINERS:
        path = f"spec.podTemplate.resources.{container}"
        given = _given(spec, container)
        if container == "rekey" and given and not is_rekeyed(spec):
            raise SpecError(
                f"{path}: only a view with spec.view.aggregate.groupBy or spec.view.keyBy has a rekey job"
            )
        limits = {n: _amount(v, f"{path}.limits.{n}") for n, v in given.get("limits", {}).items()}
        for name, requested in given.get("requests", {}).items():
            if _amount(requested, f"{path}.requests.{name}") > limits.get(name, math.inf):
                limit = given["limits"][name]
                raise SpecError(f"{path}.requests.{name}: {requested} is more than the limit of {limit}")
        if container in _WITH_JVM and limits.get("memory", math.inf) <= _heap_bytes(heap):
            raise SpecError(
                f"{path}.limits.memory: {given['limits']['memory']} is too little for the JVM's heap, "
                f"spec.ingest.driverMemory {heap}, and about {_INGEST_MIB}Mi beside it"
            )


def _given(spec: Mapping[str, Any], container: str) -> Mapping[str, Any]:
    given: Mapping[str, Any] = spec.get("podTemplate", {}).get("resources", {}).get(container, {})
    return given


def _amount(text: str | int, path: str) -> Fraction:
    try:
        return quantity(text)
    except ValueError as e:
        raise SpecError(f"{path}: {e}") from None


def serve_memory_max(layout: PodLayout) -> int:
    """Return the memory, in bytes, that all workers of a pod may fill."""
    nodes = _nodes(layout)
    under_way = sum(node.bodies_bytes_max + node.untaken_bytes_max for node in nodes) // _MIB
    return (_serve_mib(layout) + under_way + _SERVE_SPARE_MIB * len(nodes)) * _MIB


def _of_serve(layout: PodLayout) -> Mapping[str, Any]:
    return {
        "requests": {"cpu": f"{100 * layout.workers}m", "memory": f"{_serve_mib(layout)}Mi"},
        "limits": {"memory": f"{serve_memory_max(layout) // _MIB}Mi"},
    }


def _serve_mib(layout: PodLayout) -> int:
    """Return the memory of idle workers and their caches, in MiB."""
    of_nodes = sum(_SERVE_MIB + node.block_cache_mb + node.write_buffer_mb for node in _nodes(layout))
    return of_nodes + (_PARENT_MIB if layout.workers > 1 else 0)


def _nodes(layout: PodLayout) -> tuple[NodeSettings, ...]:
    """Return the settings of a pod's workers, which share out the caches and the bounds of one node."""
    return worker_settings(replace(_POD, worker_ports=layout.ports_text))


def _of_jvm(heap: str) -> Mapping[str, Any]:
    memory = f"{-(-_heap_bytes(heap) // _MIB) + _INGEST_MIB}Mi"
    return {"requests": {"cpu": "200m", "memory": memory}, "limits": {"memory": memory}}


def _heap_bytes(text: str) -> int:
    match = _HEAP.fullmatch(text)
    if match is None:
        raise SpecError(f"spec.ingest.driverMemory: {text!r} is not an amount of memory, like 512m or 2g")
    return int(match[1]) * _HEAP_BYTES[match[2].lower()]


_POD: Final = NodeSettings(
    name="",
    ordinal=0,
    application_id="",
    spec_path="",
    bootstrap_servers="",
    advertised_url="http://pod",
    data_dir="",
    run_dir="",
    placement_path="",
)
