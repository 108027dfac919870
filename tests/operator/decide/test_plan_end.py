"""The end of a pod that nobody speaks for, and of a revision: what goes in which order, and what stays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from queryable_operator.decide.actions import Plan
from queryable_operator.decide.deletion import next_deletions, stuck_pods
from queryable_operator.decide.plan import plan
from queryable_operator.rollout.live_revision import LiveRevision, Pod
from queryable_operator.spec.observed import Host, Manifest, Ref
from tests.operator.decide.test_plan import standing
from tests.operator.histories.history import History
from tests.operator.histories.operator import SETTINGS

NOW = 10_000.0
WELL, SILENT = {"host": Host(True, True, None)}, {"host": Host(False, False, None)}
NINE = {"revision": "r9", "specHash": "old", "since": "1970-01-01T00:00:00Z", "totalPartitions": 3}
Hosts = Mapping[str, Host] | None

CASES: Mapping[str, tuple[float | None, Hosts, bool]] = {
    "it was not asked to": (None, {}, False),
    "it has time left, even without its host": (NOW + 1, {}, False),
    "its host is well and may be late": (NOW - 299, WELL, False),
    "its host does not answer": (NOW, SILENT, True),
    "its host is gone": (NOW, {}, True),
    "nobody may look at hosts": (NOW - 299, None, False),
    "nobody has said anything for five minutes": (NOW - 300, None, True),
    "nor has a host that is well": (NOW - 300, WELL, True),
}


@pytest.mark.parametrize("case", CASES)
def test_a_pod_is_taken_away_when_nobody_can_say_that_it_has_ended(case: str) -> None:
    """Its process may still run for as long as it was given, and its host is believed for five minutes more."""
    ending, hosts, forced = CASES[case]
    live = LiveRevision(1, pods={0: Pod("users-r1-0", False, NOW, NOW, "host", None, ending)})

    assert tuple(stuck_pods(live, hosts, NOW)) == ((Ref("Pod", "users-r1-0"),) if forced else ())


def test_a_revision_goes_with_its_config_map_last() -> None:
    """By it the revision is known: whatever ends in between, somebody comes back for the rest."""
    objects: Mapping[str, Manifest] = {kind: {} for kind in ("ConfigMap", "Secret", "StatefulSet")}
    claim: Mapping[int, Manifest] = {0: {"metadata": {}}}
    pod = Pod("users-r1-0", True, NOW, NOW, "host", None, None)
    config_map, volume = Ref("ConfigMap", "users-r1"), Ref("PersistentVolumeClaim", "data-users-r1-0")
    only = {"ConfigMap": objects["ConfigMap"]}

    assert set(next_deletions("users", LiveRevision(1, objects, {0: pod}, claim))) == {
        Ref("Secret", "users-r1"),
        Ref("StatefulSet", "users-r1"),
    }
    assert set(next_deletions("users", LiveRevision(1, only, {0: pod}, claim))) == {
        Ref("Pod", "users-r1-0"),
        volume,
    }
    assert next_deletions("users", LiveRevision(1, only, {}, claim)) == (volume,)
    assert next_deletions("users", LiveRevision(1, only)) == (config_map,)


@pytest.mark.parametrize(
    ("named", "goes"),
    [({}, False), ({"previous": NINE}, True), ({"history": [{**NINE, "outcome": "Retired"}]}, True)],
)
def test_volumes_go_with_a_revision_that_this_resource_had(named: Mapping[str, Any], goes: bool) -> None:
    """One that status does not know left them to be kept, when a resource of the name went before."""
    volume, there = Ref("PersistentVolumeClaim", "data-users-r9-0"), standing().resource["status"]
    status = {**{name: value for name, value in there.items() if name != "history"}, **named}
    observed = replace(
        standing(),
        resource={**standing().resource, "status": status},
        children={**standing().children, volume: {"metadata": {}}},
    )

    assert plan(observed, SETTINGS).delete == ((volume,) if goes else ())


def test_a_resource_that_was_let_go_is_left_alone() -> None:
    """Somebody else's finalizer may hold it for long."""
    there = standing().resource
    metadata = {
        **there["metadata"],
        "deletionTimestamp": "1970-01-01T00:00:00Z",
        "finalizers": ["example.com/its"],
    }

    assert plan(replace(standing(), resource={**there, "metadata": metadata}), SETTINGS) == Plan()


def test_what_is_left_in_kafka_is_named() -> None:
    """What an earlier release named after the view alone may be another cluster's: it stays, and an event says so."""
    history = History.begin(1)
    history.settle()
    there = history.operator.look()
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
