"""Test status: untrusted when read, written only after a change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from queryable_operator.decide.plan import plan
from queryable_operator.report.status import rollout_state_of
from queryable_operator.spec.observed import TopicFound
from queryable_operator.spec.resource import Identity
from tests.operator.decide.test_plan import changed, condition, standing
from tests.operator.decide.test_plan_pods import not_ready
from tests.operator.histories.operator import SETTINGS

NOW = 10_000.0
IDENTITY = Identity("shop", "users", "0b8a3f3e-6a7e-4a43-8f0a-6f1d9a6f3c51", 1, deleting=False)


@pytest.mark.parametrize("silent", [{0}, {1}, {0, 1, 2}])
def test_silent_node_changes_no_status(silent: set[int]) -> None:
    """The last report of a silent node stays in status until its next one."""
    others = {ordinal: one for ordinal, one in standing().node_statuses[1].items() if ordinal not in silent}

    assert plan(replace(standing(), node_statuses={1: others}), SETTINGS).status is None


@pytest.mark.parametrize(
    ("away", "expected"),
    [({0}, ("True", "Serving")), ({0, 1, 2}, ("False", "NodesAway"))],
)
def test_view_is_available_while_every_partition_has_a_ready_node(
    away: set[int], expected: tuple[str, str]
) -> None:
    """With two replicas any one node may be down."""
    observed = standing()
    for ordinal in away:
        observed = not_ready(observed, ordinal)

    assert condition(plan(observed, SETTINGS), "Available")[:2] == expected


def test_partitions_of_another_topic_are_no_change() -> None:
    """While a candidate reads another topic, the active revision's topic is not observed."""
    observed = replace(changed(standing(), topic="others"), topic=TopicFound(97))

    assert condition(plan(observed, SETTINGS), "PartitionsInSync")[:2] == ("True", "InSync")


def named(number: int) -> dict[str, Any]:
    return {"revision": f"r{number}", "specHash": f"h{number}", "totalPartitions": 3}


@pytest.mark.parametrize(
    ("status", "roles"),
    [
        ({"active": named(2), "candidate": named(3), "previous": named(1)}, (2, 3, 1)),
        ({"active": named(2), "candidate": named(2), "previous": named(1)}, (2, None, 1)),
        ({"active": named(2), "candidate": named(3), "previous": named(3)}, (2, 3, None)),
        ({"active": named(2), "previous": named(2)}, (2, None, None)),
    ],
)
def test_revision_has_one_role(status: dict[str, Any], roles: tuple[int | None, ...]) -> None:
    """Whatever status contains, no retained revision is removed, and none takes over from itself."""
    state = rollout_state_of(IDENTITY, status, {}, None, NOW)

    assert tuple(one and one.number for one in (state.active, state.candidate, state.previous)) == roles
