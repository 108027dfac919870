"""Test which live object belongs to which revision."""

from __future__ import annotations

import pytest

from queryable_operator.rollout.live_revision import revisions_of
from queryable_operator.spec.observed import Observed, Ref


@pytest.mark.parametrize(
    ("kind", "name", "revision"),
    [
        ("ConfigMap", "users-r1", 1),
        ("Pod", "users-r1-0", 1),
        ("PersistentVolumeClaim", "data-users-r12-345", 12),
        ("ConfigMap", "users", None),
        ("ConfigMap", "users-r0", None),
        ("ConfigMap", "users2-r1", None),
        ("ConfigMap", "users-old-r1", None),
        ("Pod", "users-old-r1-0", None),
        ("PersistentVolumeClaim", "data-users2-r1-0", None),
        ("PersistentVolumeClaim", "other-users-r1-0", None),
    ],
)
def test_object_belongs_to_a_revision_by_its_whole_name(kind: str, name: str, revision: int | None) -> None:
    """An object with a similar name is another view's and is never deleted."""
    observed = Observed(0.0, {"metadata": {"name": "users"}}, {Ref(kind, name): {}})

    assert set(revisions_of(observed)) == ({revision} if revision else set())
