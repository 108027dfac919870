"""Test the parsing of `spec.view.history`."""

from __future__ import annotations

from typing import Any

import pytest

from queryable_app.config.history import HistorySpec
from queryable_app.config.topic_spec import SpecError, parse_spec

SPEC: dict[str, Any] = {"kafka": {"bootstrapServers": "a:1"}, "topic": "users"}


def test_history_has_seven_days_and_any_number_of_versions_by_default() -> None:
    """The kind alone keeps all versions for seven days, and other kinds keep none."""
    assert parse_spec({**SPEC, "view": {"kind": "history"}}).history == HistorySpec(7 * 86_400_000)
    assert parse_spec(SPEC).history is None


def test_history_takes_both_bounds() -> None:
    """The retention is a duration, and versions a number."""
    view = {"kind": "history", "history": {"retention": "90s", "versions": 3}}

    assert parse_spec({**SPEC, "view": view}).history == HistorySpec(90_000, 3)


@pytest.mark.parametrize(
    ("view", "sentence"),
    [
        ({"history": {"retention": "1d"}}, "spec.view.history: only a view of the kind history has it"),
        (
            {"kind": "history", "history": {"retention": "0s"}},
            "spec.view.history.retention: write at least 1ms",
        ),
        ({"kind": "history", "history": {"versions": 0}}, "spec.view.history.versions: write a whole number"),
        ({"kind": "history", "ttl": "1d"}, "spec.view.ttl: rows of a view with history do not expire"),
        ({"kind": "history", "keyBy": ["user"]}, "spec.view.keyBy: a view with history has the record key"),
        (
            {"kind": "history", "indexes": [{"name": "a", "field": "a", "type": "long"}]},
            "spec.view.indexes: a view with history has no indexes",
        ),
    ],
)
def test_what_no_history_has_is_refused(view: dict[str, Any], sentence: str) -> None:
    """A wrong field is named, with what to write."""
    with pytest.raises(SpecError, match=sentence):
        parse_spec({**SPEC, "view": view})
