"""Decide whether a spec needs a rekey job: a process beside the nodes that writes the records under the keys of their groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_RECORD_KEY: Final = ["key"]


def is_rekeyed(spec: Mapping[str, Any]) -> bool:
    """Return whether the view groups by other columns than the record key. `spec` may be what a revision records, also one of
    another release, so it is not parsed."""
    view = spec.get("view")
    aggregate = view.get("aggregate") if isinstance(view, Mapping) else None
    group_by = aggregate.get("groupBy") if isinstance(aggregate, Mapping) else None
    return isinstance(group_by, list) and group_by not in ([], _RECORD_KEY)
