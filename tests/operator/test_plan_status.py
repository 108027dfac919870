"""Status: read with what cannot be relied upon, and written only when something has changed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from queryable_operator.plan import plan
from queryable_operator.status import course_of
from tests.operator.histories.operator import SETTINGS
from tests.operator.test_plan import standing

NOW = 10_000.0


@pytest.mark.parametrize("silent", [{0}, {1}, {0, 1, 2}])
def test_a_node_that_falls_silent_is_no_news(silent: set[int]) -> None:
    """What it said last stands in status until somebody says something else."""
    said = {ordinal: one for ordinal, one in standing().said[1].items() if ordinal not in silent}

    assert plan(replace(standing(), said={1: said}), SETTINGS).status is None


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
def test_a_revision_has_one_role(status: dict[str, Any], roles: tuple[int | None, ...]) -> None:
    """Whatever somebody wrote into status: none that is kept is taken away, and none takes over from itself."""
    course = course_of(status, {}, None, NOW)

    assert tuple(one and one.number for one in (course.active, course.candidate, course.previous)) == roles
