"""Map each field to the effect of its change, and compute the hashes that follow from it.

A field that is missing from the table makes a revision: a forgotten field costs time, never correctness. Hashes leave out
defaults, so an upgrade of the operator gives an unchanged resource the same hashes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from enum import Enum
from typing import Any, Final

from queryable_app.wire.disk_format import FORMAT_VERSION
from queryable_operator.spec.defaults import without_defaults


class Change(Enum):
    PATCH = "the operator applies it and informs the nodes; no pod restarts"
    ROLL = "one pod after the other restarts, and keeps its data"
    REVISION = "a new revision hydrates beside the old one and takes over"
    REJECT = "the API server refuses it; create a new resource"


CHANGES: Final[Mapping[str, Change]] = {
    "kafka.bootstrapServers": Change.REVISION,
    "kafka.secretRef": Change.ROLL,
    "kafka.config": Change.ROLL,
    "topic": Change.REVISION,
    "key": Change.REVISION,
    "value": Change.REVISION,
    "onBadRecord": Change.REVISION,
    "partitioner": Change.REVISION,
    "transform": Change.REVISION,
    "view": Change.REVISION,
    "replicas": Change.PATCH,
    "standbyReplicas": Change.PATCH,
    "read": Change.PATCH,
    "auth": Change.ROLL,
    "tls": Change.ROLL,  # its fields; without it and with it are two revisions
    "storage.size": Change.PATCH,
    "storage.storageClassName": Change.REJECT,
    "storage.ephemeral": Change.REJECT,
    "storage.highWaterPercent": Change.ROLL,
    "serve": Change.REVISION,
    "ingest.mode": Change.ROLL,
    "ingest.batch": Change.ROLL,
    "ingest.trigger": Change.ROLL,
    "ingest.maxOffsetsPerTrigger": Change.ROLL,
    "ingest.driverMemory": Change.ROLL,
    "ingest.executors": Change.PATCH,
    "image": Change.ROLL,
    "podTemplate": Change.ROLL,
    "service": Change.PATCH,
    "networkPolicy": Change.PATCH,
    "rollout": Change.PATCH,
    "replaceAfter": Change.PATCH,
    "onPartitionsChanged": Change.PATCH,
    "onDataLoss": Change.ROLL,
    "deletionPolicy": Change.PATCH,
    "paused": Change.PATCH,
    "suspended": Change.PATCH,
    "redeployNonce": Change.REVISION,
}
"""By path below `spec`. A path covers every field below it."""

_KEPT: Final = (Change.REVISION, Change.REJECT)

_SWITCHES: Final = ("tls",)
"""Fields whose presence makes a revision: nodes of one revision call each other, so all of them speak TLS or none does."""


def spec_hash(spec: Mapping[str, Any], partitions: int, disk_format: int = FORMAT_VERSION) -> str:
    """Hash every field that makes a revision. The same nodes can serve two specs with the same hash."""
    fields = without_defaults(_fields(spec, (Change.REVISION,)))
    fields |= {name: True for name in _SWITCHES if spec.get(name) is not None}
    return _digest({"spec": fields, "partitions": partitions, "diskFormat": disk_format})


def roll_hash(spec: Mapping[str, Any], image: str, kafka_secret_digest: str) -> str:
    """Hash every field that restarts pods. `image` is the image in use, also when the spec names none."""
    fields = without_defaults(_fields(spec, (Change.ROLL,)))
    fields.pop("image", None)
    return _digest({"spec": fields, "image": image, "kafkaSecret": kafka_secret_digest})


def effective_spec(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec that the nodes of a revision made from `old` follow while the resource says `new`."""
    free = tuple(change for change in Change if change not in _KEPT)
    whole = _merged(_fields(new, free), _fields(old, _KEPT))
    for name in _SWITCHES:
        if (name in old) is not (name in new):
            whole.pop(name, None)
            whole |= {name: old[name]} if name in old else {}
    return whole


def _fields(spec: Mapping[str, Any], changes: Collection[Change], prefix: str = "") -> dict[str, Any]:
    """Return the part of a spec whose change has one of these effects."""
    part = {}
    for name, value in spec.items():
        path = f"{prefix}{name}"
        if path in _PARENTS and isinstance(value, Mapping):
            if below := _fields(value, changes, f"{path}."):
                part[name] = below
        elif CHANGES.get(path, Change.REVISION) in changes:
            part[name] = value
    return part


_PARENTS: Final = frozenset(path.rpartition(".")[0] for path in CHANGES if "." in path)


def _merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    whole = dict(one)
    for name, value in other.items():
        there = whole.get(name)
        both = isinstance(there, Mapping) and isinstance(value, Mapping)
        whole[name] = _merged(there, value) if both else value  # type: ignore[arg-type]
    return whole


def _digest(value: Mapping[str, Any]) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
