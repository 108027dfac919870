"""Let tests use views that group by other columns than the record key, which this version refuses on Kubernetes."""

from __future__ import annotations

from typing import Any, Final

import pytest

from queryable_app.config import topic_spec
from queryable_operator.spec import rekeying

WORDS: Final[dict[str, Any]] = {
    "kind": "aggregate",
    "aggregate": {"groupBy": ["word"], "columns": [{"name": "n", "op": "count"}]},
}
"""The `view` of a word count."""


def allow_group_by(monkeypatch: pytest.MonkeyPatch) -> None:
    later = {path: why for path, why in topic_spec._LATER.items() if path[-1] != "groupBy"}
    monkeypatch.setattr(topic_spec, "_LATER", later)
    monkeypatch.setattr(rekeying, "_RUNS_ON_KUBERNETES", True)
