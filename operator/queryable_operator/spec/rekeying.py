"""Decide whether a spec needs a rekey job: a process beside the nodes that writes the records under the keys of their groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_RECORD_KEY: Final = ["key"]


def is_rekeyed(spec: Mapping[str, Any]) -> bool:
    """Return whether the view groups by other columns than the record key, or has them as its key. `spec` may be what a
    revision records, also one of another release, so it is not parsed."""
    view = spec.get("view")
    if not isinstance(view, Mapping):
        return False
    aggregate = view.get("aggregate")
    group_by = aggregate.get("groupBy") if isinstance(aggregate, Mapping) else None
    return any(
        isinstance(columns, list) and columns not in ([], _RECORD_KEY)
        for columns in (group_by, view.get("keyBy"))
    )


def executor_count(spec: Mapping[str, Any], partitions: int | None = None) -> int:
    """Return the number of executors that the rekey job has. More than partitions would have nothing to read."""
    ingest = spec.get("ingest")
    wanted = ingest.get("executors") if isinstance(ingest, Mapping) and is_rekeyed(spec) else None
    if not isinstance(wanted, int):
        return 0
    return wanted if partitions is None else min(wanted, partitions)
