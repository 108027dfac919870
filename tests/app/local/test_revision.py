"""Test which changes need a new revision, and the placement that a run starts with."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from queryable_app.local.desired_scale import DesiredScale
from queryable_app.local.pods import start_placement
from queryable_app.local.revision import next_revision, view_digests
from queryable_app.placement.assignment import Placement

SPEC: dict[str, Any] = {"topic": "users", "transform": {"sql": "SELECT 1"}, "replicas": 1}


def stored(spec: dict[str, Any], kafka: str = "embedded", partitions: int = 4) -> dict[str, Any]:
    return {"revision": 3, "view": view_digests(spec, kafka, partitions)}


def test_new_directory_starts_with_the_first_revision() -> None:
    """A new directory has revision 1, and no changed fields."""
    assert next_revision(None, view_digests(SPEC, "embedded", 4)) == (1, [])


def test_change_that_alters_no_result_keeps_the_revision() -> None:
    """The number of nodes and the default consistency need no new revision."""
    again = view_digests({**SPEC, "replicas": 3, "read": {"consistency": "strong"}}, "embedded", 4)

    assert next_revision(stored(SPEC), again) == (3, [])


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
def test_change_that_alters_results_needs_a_new_revision(view: dict[str, Any], changed: list[str]) -> None:
    """The new revision names the changed fields."""
    assert next_revision(stored(SPEC), view) == (4, changed)


def place(
    before: Placement | None, urls: list[str], nodes: int = 2, application_id: str = "local.users.r1"
) -> Placement:
    stored_before = None if before is None else json.loads(before.to_json())
    return start_placement(stored_before, application_id, 4, urls, DesiredScale(nodes, 0))


def test_same_placement_keeps_its_epoch() -> None:
    """Nodes that restart find the placement that they know."""
    first = place(None, ["http://a", "http://b"])

    assert place(first, ["http://a", "http://b"]) == first


def test_replicas_stay_when_a_run_starts_with_another_number_of_nodes() -> None:
    """A run keeps the replicas of an earlier one; they move while all nodes serve."""
    first = place(None, ["http://a", "http://b"])

    fewer = place(first, ["http://c", "http://d"], nodes=1)

    assert fewer == replace(first, epoch=2, addresses=("http://c", "http://d"))


def test_changed_placement_has_a_higher_epoch() -> None:
    """Nodes prefer a changed placement to the stored one."""
    first = place(None, ["http://a", "http://b"])

    assert place(first, ["http://a", "http://c"]).epoch == 2
    again = place(first, ["http://a", "http://b"], application_id="local.users.r2")
    assert (again.epoch, again.serving) == (2, first.serving)


def test_another_number_of_workers_is_another_view() -> None:
    """A change of a pod's workers needs new stores, since each worker has its own. One worker is as none."""
    before = view_digests(SPEC, "embedded", 4)

    assert view_digests(SPEC, "embedded", 4, 1) == before
    assert next_revision({"revision": 1, "view": before}, view_digests(SPEC, "embedded", 4, 2)) == (
        2,
        ["workers"],
    )
