"""Decide which revision of a view a run serves.

A change that can alter a result needs new stores. In a cluster they are built beside the old ones; on one machine they
replace them, since no node serves reads before the run starts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

# The fields of the spec that alter results.
_FIELDS: Final = ("topic", "key", "value", "onBadRecord", "partitioner", "transform", "view", "redeployNonce")


def view_digests(spec: Mapping[str, Any], kafka: str, partitions: int, workers: int = 1) -> dict[str, Any]:
    """Return digests of what the stores depend on. The run keeps them beside the stores.

    The number of a pod's workers alters no result, and where each replica is.
    """
    parts = {name: spec[name] for name in _FIELDS if name in spec}
    digests = {
        name: hashlib.sha256(json.dumps(part, sort_keys=True).encode()).hexdigest()
        for name, part in parts.items()
    }
    of_workers = {"workers": workers} if workers > 1 else {}
    return {**digests, "kafka": kafka, "partitions": partitions, **of_workers}


def next_revision(stored: Mapping[str, Any] | None, view: Mapping[str, Any]) -> tuple[int, list[str]]:
    """Return the number of the revision, and the fields whose change requires a new one."""
    if stored is None:
        return 1, []
    before: Mapping[str, Any] = stored["view"]
    changed = sorted(name for name in before.keys() | view.keys() if before.get(name) != view.get(name))
    return int(stored["revision"]) + bool(changed), changed
