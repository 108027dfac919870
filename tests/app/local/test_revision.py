"""What a kept directory's stores depend on."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from queryable_app.local.desired_scale import DesiredScale
from queryable_app.local.nodes import start_placement
from queryable_app.local.revision import next_revision, view_digests
from queryable_app.placement.assignment import Placement

SPEC: dict[str, Any] = {"topic": "users", "transform": {"sql": "SELECT 1"}, "replicas": 1}


def kept(spec: dict[str, Any], kafka: str = "embedded", partitions: int = 4) -> dict[str, Any]:
    return {"revision": 3, "view": view_digests(spec, kafka, partitions)}


def test_a_new_directory_begins_with_the_first_revision() -> None:
    """Nothing has changed, since there was nothing."""
    assert next_revision(None, view_digests(SPEC, "embedded", 4)) == (1, [])


def test_what_alters_no_answer_keeps_the_rows() -> None:
    """The number of nodes, or what a read gets by default, is no new revision."""
    again = view_digests({**SPEC, "replicas": 3, "read": {"consistency": "strong"}}, "embedded", 4)

    assert next_revision(kept(SPEC), again) == (3, [])


@pytest.mark.parametrize(
    ("view", "changed"),
    [
        (view_digests({**SPEC, "transform": {"sql": "SELECT 2"}}, "embedded", 4), ["transform"]),
        (view_digests({"topic": "users"}, "embedded", 4), ["transform"]),
        (view_digests({**SPEC, "key": {"format": "long"}, "topic": "x"}, "embedded", 4), ["key", "topic"]),
        (view_digests(SPEC, "broker:9092", 4), ["kafka"]),
        (view_digests(SPEC, "embedded", 5), ["partitions"]),
        (view_digests({**SPEC, "redeployNonce": 1}, "embedded", 4), ["redeployNonce"]),
    ],
    ids=["sql", "sql-gone", "key-and-topic", "broker", "partitions", "nonce"],
)
def test_what_alters_answers_is_a_new_revision(view: dict[str, Any], changed: list[str]) -> None:
    """The fields that made it one are named."""
    assert next_revision(kept(SPEC), view) == (4, changed)


def place(
    before: Placement | None, urls: list[str], nodes: int = 2, application_id: str = "local.users.r1"
) -> Placement:
    kept_one = None if before is None else json.loads(before.to_json())
    return start_placement(kept_one, application_id, 4, urls, DesiredScale(nodes, 0))


def test_the_same_placement_keeps_its_number() -> None:
    """Nodes that start again find what they know."""
    first = place(None, ["http://a", "http://b"])

    assert place(first, ["http://a", "http://b"]) == first


def test_copies_stay_where_they_are_when_a_run_begins_with_another_number_of_nodes() -> None:
    """What an earlier run has built is not thrown away: it moves, while everyone serves."""
    first = place(None, ["http://a", "http://b"])

    fewer = place(first, ["http://c", "http://d"], nodes=1)

    assert fewer == replace(first, epoch=2, addresses=("http://c", "http://d"))


def test_another_placement_is_preferred_to_the_kept_one() -> None:
    """Its number is higher, whatever has changed."""
    first = place(None, ["http://a", "http://b"])

    assert place(first, ["http://a", "http://c"]).epoch == 2
    again = place(first, ["http://a", "http://b"], application_id="local.users.r2")
    assert (again.epoch, again.serving) == (2, first.serving)
