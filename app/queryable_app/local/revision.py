"""Which revision of a view a data directory holds.

A change that could alter an answer needs new stores. In a cluster the new ones are built beside the old; on one machine
they replace them, since nobody reads while nothing runs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

# What decides the answers, besides the topic itself.
_FIELDS: Final = ("topic", "key", "value", "onBadRecord", "partitioner", "transform", "view", "redeployNonce")


def view_digests(spec: Mapping[str, Any], kafka: str, partitions: int) -> dict[str, Any]:
    """What the stores depend on, as it is kept beside them."""
    parts = {name: spec[name] for name in _FIELDS if name in spec}
    digests = {
        name: hashlib.sha256(json.dumps(part, sort_keys=True).encode()).hexdigest()
        for name, part in parts.items()
    }
    return {**digests, "kafka": kafka, "partitions": partitions}


def next_revision(kept: Mapping[str, Any] | None, view: Mapping[str, Any]) -> tuple[int, list[str]]:
    """The revision's number, and the fields whose change made it a new one."""
    if kept is None:
        return 1, []
    before: Mapping[str, Any] = kept["view"]
    changed = sorted(name for name in before.keys() | view.keys() if before.get(name) != view.get(name))
    return int(kept["revision"]) + bool(changed), changed
