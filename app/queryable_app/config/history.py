"""Parse `spec.view.history`, or raise an error that names the field and what to write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from queryable_app.config.spec_fields import SpecError, duration_ms, whole

VERSIONS_MAX: Final = 1_000_000  # as in the schema
_RETENTION: Final = "7d"
_PATH: Final = "spec.view.history"


@dataclass(frozen=True, slots=True)
class HistorySpec:
    """Say which versions of its keys a view keeps."""

    retention_ms: int
    """How long a version stays after its replacement."""
    versions: int | None = None
    """How many versions of a key stay. None: all within the retention."""


def parse_history(view: Mapping[str, Any]) -> HistorySpec | None:
    """Return the history of a view of the kind history; None for other kinds. Refuse what no such view has."""
    given: Mapping[str, Any] = view.get("history") or {}
    if view.get("kind", "latest") != "history":
        if given:
            raise SpecError(f"{_PATH}: only a view of the kind history has it; write spec.view.kind: history")
        return None
    for field, instead in (
        ("keyBy", "a view with history has the record key in this version; leave the field out"),
        ("ttl", f"rows of a view with history do not expire in this version; use {_PATH}.retention"),
        ("indexes", "a view with history has no indexes in this version; leave the field out"),
        ("entries", "a view with history keeps versions, and no entries; leave one of both out"),
    ):
        if view.get(field):
            raise SpecError(f"spec.view.{field}: {instead}")
    retention_ms = duration_ms(given.get("retention", _RETENTION), f"{_PATH}.retention")
    if retention_ms == 0:
        raise SpecError(f"{_PATH}.retention: write at least 1ms; for the newest value alone, leave out kind")
    versions = given.get("versions")
    return HistorySpec(
        retention_ms, None if versions is None else whole(versions, VERSIONS_MAX, f"{_PATH}.versions")
    )
