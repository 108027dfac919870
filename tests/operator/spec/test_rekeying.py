"""Test which views have a rekey job."""

from __future__ import annotations

from typing import Any

import pytest

from queryable_app.config.topic_spec import SpecError, parse_spec
from queryable_operator.spec import names
from queryable_operator.spec.rekeying import is_rekeyed
from tests.support.rekeyed import WORDS
from tests.support.view import resource, view

COUNT: dict[str, Any] = {"columns": [{"name": "n", "op": "count"}]}


@pytest.mark.parametrize(
    "of",
    [
        {},
        {"view": {"kind": "aggregate", "aggregate": COUNT}},
        {"view": {"kind": "aggregate", "aggregate": {**COUNT, "groupBy": ["key"]}}},
        {"view": WORDS},
        {"view": {"kind": "aggregate", "aggregate": {**COUNT, "groupBy": ["key", "word"]}}},
        {"view": {"keyBy": ["key"]}},
        {"view": {"keyBy": ["email"]}},
    ],
)
def test_operator_and_nodes_agree(of: dict[str, Any]) -> None:
    """The operator runs a job for exactly those specs whose nodes read an internal topic."""
    spec = resource(**of)["spec"]

    assert is_rekeyed(spec) == parse_spec(spec).is_rekeyed


@pytest.mark.parametrize(
    "spec", [{}, {"view": None}, {"view": {"aggregate": 1}}, {"view": {"aggregate": {"groupBy": 1}}}]
)
def test_malformed_spec_has_no_job(spec: dict[str, Any]) -> None:
    """A recorded spec may be that of another release, so it is not parsed."""
    assert is_rekeyed(spec) is False


def test_requirements_of_a_missing_job_are_refused() -> None:
    """Only a rekeyed view may state the requirements of a rekey job."""
    given: dict[str, Any] = {"podTemplate": {"resources": {"rekey": {"requests": {"cpu": "1"}}}}}
    with pytest.raises(SpecError, match=r"^spec\.podTemplate\.resources\.rekey: only a view with"):
        view(**given)
    assert view(view=WORDS, **given).raw["podTemplate"] == given["podTemplate"]


@pytest.mark.parametrize(
    ("name", "revision"),
    [
        ("v-r1-rekey", 1),
        ("v-r1", None),
        ("v-rekey", None),
        ("w-r1-rekey", None),
        ("v-r01-rekey", None),
        ("v-v-r1-rekey", None),
    ],
)
def test_name_of_a_job_is_matched_as_a_whole(name: str, revision: int | None) -> None:
    """No other StatefulSet counts as a view's rekey job."""
    assert names.revision_of_rekey_job("v", name) == revision
