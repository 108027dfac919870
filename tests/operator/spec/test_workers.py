"""Test how many workers a revision has in each pod."""

from __future__ import annotations

from typing import Any

import pytest

from queryable_app.config.topic_spec import SpecError
from queryable_operator.spec.changes import effective_spec, spec_hash
from queryable_operator.spec.pods import PodLayout
from queryable_operator.spec.requirements import serve_memory_max
from queryable_operator.spec.workers import desired_workers, with_workers
from tests.support.view import view


def spec(workers: int | None = None, replicas: int = 1, **resources: Any) -> dict[str, Any]:
    stated: dict[str, Any] = {} if workers is None else {"serve": {"workers": workers}}
    pods: dict[str, Any] = {"podTemplate": {"resources": {"serve": resources}}}
    return dict(view(replicas=replicas, **stated, **pods).raw)


@pytest.mark.parametrize(
    ("resources", "workers"),
    [
        ({}, 1),
        ({"requests": {"cpu": "500m"}}, 1),
        ({"requests": {"cpu": "3900m"}}, 3),
        ({"limits": {"cpu": "2"}}, 2),
        ({"requests": {"cpu": "1"}, "limits": {"cpu": 4}}, 4),
        ({"limits": {"cpu": "1000"}}, 64),
        ({"limits": {"cpu": "4", "memory": "16Gi"}}, 4),
        ({"limits": {"cpu": "4", "memory": "768Mi"}}, 1),
        ({"limits": {"cpu": "4", "memory": str(serve_memory_max(PodLayout(3)))}}, 3),
    ],
)
def test_new_revision_has_a_worker_for_each_whole_cpu(resources: dict[str, Any], workers: int) -> None:
    """The limit of CPUs counts before the request, at least one worker starts, and the memory limit has room for all."""
    assert desired_workers(spec(**resources), 1000) == workers


def test_new_revision_has_no_more_nodes_than_a_placement_names() -> None:
    """A placement names at most 1000 nodes."""
    assert desired_workers(spec(replicas=300, limits={"cpu": "64"}), 1000) == 3


@pytest.mark.parametrize("stated", [None, 8])
def test_no_worker_is_without_a_partition(stated: int | None) -> None:
    """More workers than partitions are not started, whether they are stated or follow from the CPUs."""
    assert desired_workers(spec(stated, limits={"cpu": "8"}), 3) == 3


def test_existing_revision_keeps_its_workers() -> None:
    """A change of the CPUs gives an existing revision no other number, and a stated number does."""
    assert desired_workers(spec(limits={"cpu": "8"}), 12, recorded=2) == 2
    assert desired_workers(spec(4), 12, recorded=2) == 4


def test_one_worker_changes_no_hash() -> None:
    """A revision with one worker records nothing, as revisions of earlier releases did."""
    assert spec_hash(with_workers(spec(1), 1), 12) == spec_hash(spec(), 12)
    assert spec_hash(with_workers(spec(2), 2), 12) != spec_hash(spec(), 12)


def test_revision_records_its_workers() -> None:
    """The recorded number stays in effect whatever the resource says later."""
    recorded = with_workers(spec(limits={"cpu": "2"}), 2)

    for later in (spec(), spec(1), spec(8)):
        assert PodLayout.of(effective_spec(recorded, later)) == PodLayout(2)
    assert PodLayout.of(effective_spec(with_workers(spec(), 1), spec(8))) == PodLayout(1)


def test_more_nodes_than_a_placement_names_are_refused() -> None:
    """The sentence has the field and the figures."""
    with pytest.raises(SpecError, match=r"^spec\.replicas: 20 pods with 64 workers each are more than 1000"):
        spec(64, replicas=20)
