"""A view that groups by another column than the record key, and so has a rekey job."""

from __future__ import annotations

from typing import Any, Final

WORDS: Final[dict[str, Any]] = {
    "kind": "aggregate",
    "aggregate": {"groupBy": ["word"], "columns": [{"name": "n", "op": "count"}]},
}
"""The `view` of a word count."""
