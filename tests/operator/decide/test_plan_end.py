"""Test the deletion of stuck pods, of revisions and of resources: the order of the removals, and what is retained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from queryable_operator.decide.actions import Plan
from queryable_operator.decide.deletion import next_deletions, stuck_pods
from queryable_operator.decide.plan import plan
from queryable_operator.rollout.live_revision import LiveRevision
from queryable_operator.rollout.pod import Pod
from queryable_operator.spec.observed import Host, Manifest, Ref
from queryable_operator.spec.pods import PodIndex
from tests.operator.decide.test_plan import standing
from tests.operator.histories.history import History
from tests.operator.histories.operator import SETTINGS

NOW = 10_000.0
WELL, SILENT = {"host": Host(True, True, None)}, {"host": Host(False, False, None)}
NINE = {"revision": "r9", "specHash": "old", "since": "1970-01-01T00:00:00Z", "totalPartitions": 3}
Hosts = Mapping[str, Host] | None

CASES: Mapping[str, tuple[float | None, Hosts, bool]] = {
    "it is not terminating": (None, {}, False),
    "it has time left, even without its host": (NOW + 1, {}, False),
    "its host is ready and less than five minutes have passed": (NOW - 299, WELL, False),
    "its host does not answer": (NOW, SILENT, True),
    "its host is deleted": (NOW, {}, True),
    "the hosts are unknown and less than five minutes have passed": (NOW - 299, None, False),
    "the hosts are unknown and five minutes have passed": (NOW - 300, None, True),
    "its host is ready and five minutes have passed": (NOW - 300, WELL, True),
}
FIRST = PodIndex(0)


@pytest.mark.parametrize("case", CASES)
def test_pod_is_force_deleted_when_nothing_confirms_its_end(case: str) -> None:
    """A stuck pod is deleted by force after its grace period, and on a ready host five minutes later."""
    ending, hosts, forced = CASES[case]
    live = LiveRevision(1, pods={FIRST: Pod("users-r1-0", False, NOW, NOW, "host", None, ending)})

    assert tuple(stuck_pods(live, hosts, NOW)) == ((Ref("Pod", "users-r1-0"),) if forced else ())


def test_config_map_of_a_revision_is_deleted_last() -> None:
    """The ConfigMap, which identifies a revision, is deleted last, so that an interrupted removal continues."""
    objects: Mapping[str, Manifest] = {kind: {} for kind in ("ConfigMap", "Secret", "StatefulSet")}
    claim: Mapping[PodIndex, Manifest] = {FIRST: {"metadata": {}}}
    pod = Pod("users-r1-0", True, NOW, NOW, "host", None, None)
    config_map, volume = Ref("ConfigMap", "users-r1"), Ref("PersistentVolumeClaim", "data-users-r1-0")
    only = {"ConfigMap": objects["ConfigMap"]}

    assert set(next_deletions("users", LiveRevision(1, objects, {FIRST: pod}, claim))) == {
        Ref("Secret", "users-r1"),
        Ref("StatefulSet", "users-r1"),
    }
    assert set(next_deletions("users", LiveRevision(1, only, {FIRST: pod}, claim))) == {
        Ref("Pod", "users-r1-0"),
        volume,
    }
    assert next_deletions("users", LiveRevision(1, only, {}, claim)) == (volume,)
    assert next_deletions("users", LiveRevision(1, only)) == (config_map,)


@pytest.mark.parametrize(
    ("named", "goes"),
    [({}, False), ({"previous": NINE}, True), ({"history": [{**NINE, "outcome": "Retired"}]}, True)],
)
def test_volumes_of_an_unknown_revision_stay(named: Mapping[str, Any], goes: bool) -> None:
    """An earlier resource with this name retained them."""
    volume, there = Ref("PersistentVolumeClaim", "data-users-r9-0"), standing().resource["status"]
    status = {**{name: value for name, value in there.items() if name != "history"}, **named}
    observed = replace(
        standing(),
        resource={**standing().resource, "status": status},
        children={**standing().children, volume: {"metadata": {}}},
    )

    assert plan(observed, SETTINGS).delete == ((volume,) if goes else ())


def test_resource_without_the_finalizer_is_left_alone() -> None:
    """Another finalizer may hold it for long."""
    there = standing().resource
    metadata = {
        **there["metadata"],
        "deletionTimestamp": "1970-01-01T00:00:00Z",
        "finalizers": ["example.com/its"],
    }

    assert plan(replace(standing(), resource={**there, "metadata": metadata}), SETTINGS) == Plan()


def test_event_names_what_stays_in_kafka() -> None:
    """Names of an earlier release may belong to another cluster's view: they stay, and an event lists them."""
    history = History.begin(1)
    history.settle()
    there = history.operator.observe()
    metadata = {**there.resource["metadata"], "deletionTimestamp": "1970-01-01T00:00:00Z"}
    ended = replace(
        there,
        resource={**there.resource, "metadata": metadata},
        children={},
        kafka_cleaned=True,
        kafka_retained=("default.users.r1", "default.users.r1.dead-letter"),
    )
    planned = plan(ended, SETTINGS)

    assert planned.remove_finalizer
    (event,) = planned.events
    assert (event.type, event.reason) == ("Warning", "CleanupFailed")
    assert "default.users.r1, default.users.r1.dead-letter" in event.message
    assert not plan(replace(ended, kafka_retained=()), SETTINGS).events
