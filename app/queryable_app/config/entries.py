"""Parse `spec.view.entries`, or raise an error that names the field and what to write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from queryable_app.config.spec_fields import SpecError, duration_ms

_PATH: Final = "spec.view.entries"
_OTHERS: Final = {
    "keyBy": "is keyed by the record key",
    "ttl": "has entries that expire by their own time, with entries.retention",
    "indexes": "has no indexes in this version",
    "changes": "has no change feed in this version",
}
"""The fields of a view that a view of entries does not take, and why."""


@dataclass(frozen=True, slots=True)
class EntriesSpec:
    """Describe a view that keeps every record of a key, in the order of a time in its value."""

    time_field: str
    """The names on the way to the time, joined by dots."""
    retention_ms: int | None = None
    """How long an entry stays, by the newest time that its partition has seen. None: for ever."""


def parse_entries(view: Mapping[str, Any], value_is_json: bool) -> EntriesSpec | None:
    """Return what `spec.view` says about entries; None if the view keeps none."""
    entries = view.get("entries")
    if entries is None:
        return None
    kind = view.get("kind", "latest")
    if kind != "latest":
        raise SpecError(f"{_PATH}: the kind {kind} has no entries; leave out spec.view.kind")
    for field, why in _OTHERS.items():
        if view.get(field):
            raise SpecError(f"spec.view.{field}: a view with {_PATH} {why}; leave the field out")
    if not value_is_json:
        raise SpecError(
            f"{_PATH}: only JSON values have fields; write spec.value.format: json, or a transform, or leave the field out"
        )
    time_field = entries.get("timeField")
    if not isinstance(time_field, str) or not all(time_field.split(".")):
        raise SpecError(
            f"{_PATH}.timeField: write names joined by single dots, like `at` or `meta.createdAt`"
        )
    retention = entries.get("retention")
    retention_ms = None if retention is None else duration_ms(retention, f"{_PATH}.retention")
    if retention_ms == 0:
        raise SpecError(
            f"{_PATH}.retention: an entry that expires at once can never be read; leave the field out to keep entries"
        )
    return EntriesSpec(time_field, retention_ms)
