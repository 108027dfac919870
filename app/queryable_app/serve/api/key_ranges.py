"""Restrict a range of rows to the keys that a caller may read."""

from __future__ import annotations

from dataclasses import replace

from queryable_app.aggregates.window_keys import group_prefix
from queryable_app.serve.api.access import KeyAccess
from queryable_app.serve.reads.prefixed_index import part_with_prefix
from queryable_app.serve.reads.scans import Bounds


def restricted(bounds: Bounds, access: KeyAccess, of_windows: bool = False) -> Bounds:
    """Return the part of a range of on-disk keys that the caller may read. Refuse a range with keys of several prefixes.

    Only keys that are the same on the disk and in records have prefixes, so a prefix of one is a prefix of the other."""
    if not access.limited:
        access.applied = True
        return bounds
    parts = {
        prefix: part
        for prefix in access.prefixes
        if (part := part_with_prefix(bounds, group_prefix(prefix) if of_windows else prefix)) is not None
    }
    prefix = access.one_of_prefixes(parts)
    return replace(bounds, start=b"", stop=b"") if prefix is None else parts[prefix]
