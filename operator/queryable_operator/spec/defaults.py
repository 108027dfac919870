"""Apply the defaults of the CRD's schema, as the API server does. A test compares this table with the schema.

A default applies where its parent object exists; most parents exist by default. `without_defaults` treats a field that states
its default like one that is left out, so a field that a later release adds changes no hash.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Final

DEFAULTS: Final[Mapping[str, Any]] = {
    "kafka.config": {},
    "key": {},
    "key.format": "string",
    "value": {},
    "value.format": "json",
    "onBadRecord": "Skip",
    "partitioner": "auto",
    "view": {},
    "view.kind": "latest",
    "view.aggregate.window.grace": "10s",
    "view.aggregate.window.retention": "7d",
    "view.history.retention": "7d",
    "view.changes": False,
    "replicas": 1,
    "standbyReplicas": 0,
    "read": {},
    "read.consistency": "bounded",
    "read.ingest": False,
    "read.maxConcurrent": 512,
    "read.writes.idempotencyWindow": "10m",
    "tls.clientAuth": "none",
    "storage": {},
    "storage.size": "10Gi",
    "storage.ephemeral": False,
    "storage.highWaterPercent": 85,
    "ingest": {},
    "ingest.mode": "realtime",
    "ingest.batch": "5m",
    "ingest.trigger": "0s",
    "ingest.maxOffsetsPerTrigger": 100_000,
    "ingest.driverMemory": "512m",
    "ingest.executors": 0,
    "service": {},
    "service.port": 8080,
    "rollout": {},
    "rollout.promotion": "Automatic",
    "rollout.hydrationDeadline": "1h",
    "rollout.maxLag": 0,
    "rollout.stable": "30s",
    "rollout.compare": {},
    "rollout.compare.mode": "Sample",
    "rollout.compare.sampleKeys": 1000,
    "rollout.compare.maxMismatchRatio": "0",
    "rollout.compare.ignoreFields": [],
    "rollout.rollbackWindow": "10m",
    "rollout.onFailure": "DeleteCandidate",
    "replaceAfter": "5m",
    "onPartitionsChanged": "Redeploy",
    "onDataLoss": "Fail",
    "deletionPolicy": "Delete",
    "paused": False,
    "suspended": False,
    "redeployNonce": 0,
}
"""By path below `spec`. A parent stands before its fields."""

_BY_NAMES: Final = tuple((tuple(path.split(".")), default) for path, default in DEFAULTS.items())


def with_defaults(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec with every default filled in, as the API server stores it."""
    whole: dict[str, Any] = copy.deepcopy(dict(spec))
    for (*parents, name), default in _BY_NAMES:
        holder: Any = whole
        for parent in parents:
            holder = holder.get(parent) if isinstance(holder, dict) else None
        if isinstance(holder, dict) and name not in holder:
            holder[name] = copy.deepcopy(default)
    return whole


def without_defaults(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that differ from their defaults."""
    return _without(spec, "")


def _without(fields: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    stated = {}
    for name, value in fields.items():
        path = f"{prefix}{name}"
        left = _without(value, f"{path}.") if isinstance(value, Mapping) else value
        if left != {} and not _same(left, DEFAULTS.get(path)):
            stated[name] = left
    return stated


def _same(value: Any, default: Any) -> bool:
    return type(value) is type(default) and bool(value == default)  # in Python, 0 == False
