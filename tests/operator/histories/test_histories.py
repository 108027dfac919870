"""Test random histories: the invariants always hold, and after the last fault the resource settles."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from queryable_operator.build.settings_map import record_of
from queryable_operator.decide.plan import plan
from queryable_operator.report.conditions import conditions_by_type
from queryable_operator.spec import names
from queryable_operator.spec.changes import spec_hash
from queryable_operator.spec.workers import desired_workers, with_workers
from tests.operator.histories.faults import TLS_FAULTS, WORKER_FAULTS
from tests.operator.histories.history import History, delete_resource
from tests.operator.histories.operator import SETTINGS

HISTORIES = 60
WORKER_HISTORIES = 30
TLS_HISTORIES = 20
AT_ONCE = 5  # the limit of a test is three minutes, also on a busy machine


def delete_at_any_moment(seed: int, history: History) -> None:
    """Delete the resource in the middle of its history, and run passes for as long as a deletion may take."""
    history.run_passes(5 + seed % 60, fault_chance=0.25, crash_chance=0.2)
    delete_resource(history)
    history.run_passes(200, crash_chance=0.2)
    for _ in range(60):
        history.pass_time(10)
        history.run_pass()


@contextmanager
def story_in_failure(seed: int, history: History) -> Iterator[None]:
    """Add the seed and the end of the story to a failure."""
    try:
        yield
    except Exception as error:
        error.add_note("\n".join([f"seed {seed}", *history.story[-60:]]))
        raise


def run_until_settled(seed: int, history: History) -> None:
    with story_in_failure(seed, history):
        history.run_passes(10)
        history.run_passes(80, fault_chance=0.25, crash_chance=0.2)
        history.heal()
        history.settle()
        assert_settled(history)


@pytest.mark.parametrize("first", range(0, HISTORIES, AT_ONCE))
def test_history_of_faults_ends_settled(first: int) -> None:
    """Spec changes, faults and an operator that ends between any two actions break no invariant, and the view settles."""
    for seed in range(first, first + AT_ONCE):
        run_until_settled(seed, History.begin(seed))


@pytest.mark.parametrize("first", range(0, WORKER_HISTORIES, AT_ONCE))
def test_history_of_workers_ends_settled(first: int) -> None:
    """The same holds for pods with several workers, whose number changes with the spec and with a new revision's CPUs."""
    for seed in range(first, first + AT_ONCE):
        history = History.begin(seed + 20_000, serve={"workers": 1 + seed % 3})
        history.faults = WORKER_FAULTS
        run_until_settled(seed, history)


@pytest.mark.parametrize("first", range(0, TLS_HISTORIES, AT_ONCE))
def test_history_of_tls_ends_settled(first: int) -> None:
    """The same holds while TLS comes and goes: no revision has nodes of both kinds, and none starts without a certificate."""
    for seed in range(first, first + AT_ONCE):
        history = History.begin(seed + 40_000, **({"tls": {}} if seed % 2 else {}))
        history.faults = TLS_FAULTS
        run_until_settled(seed, history)
        addresses = [
            address
            for live in history.cluster.api.of("ConfigMap")
            for address in record_of(live).placement.addresses
        ]
        scheme = "https" if "tls" in history.operator.resource["spec"] else "http"
        active = history.operator.resource["status"]
        if "failedHash" not in active and conditions_by_type(active)["SpecValid"]["status"] == "True":
            assert {address.partition("://")[0] for address in addresses} == {scheme}


@pytest.mark.parametrize("first", range(0, HISTORIES, AT_ONCE))
def test_deleted_resource_leaves_nothing(first: int) -> None:
    """A deletion at any moment removes every object, and removes every consumer group or reports that it remains."""
    for seed in range(first, first + AT_ONCE):
        history = History.begin(seed + 10_000)
        with story_in_failure(seed, history):
            delete_at_any_moment(seed, history)
            assert_gone(history)


def assert_settled(history: History) -> None:
    operator, cluster = history.operator, history.cluster
    spec, status = operator.resource["spec"], operator.resource["status"]
    conditions = {kind: entry["status"] for kind, entry in conditions_by_type(status).items()}
    assert status["phase"] == "Ready", (status["phase"], conditions_by_type(status)["Progressing"])
    assert conditions["Available"] == "True", conditions_by_type(status)["Available"]
    assert conditions["Progressing"] == "False", conditions_by_type(status)["Progressing"]
    assert conditions["Hydrated"] == "True", conditions_by_type(status)["Hydrated"]
    nodes = int(status["nodes"].partition("/")[2])
    assert nodes == spec["replicas"] or conditions["SpecValid"] == "False"
    assert status["nodes"] == f"{nodes}/{nodes}"
    assert_wanted_revision(history, status)
    history.guarantees.no_pod_has_two_replicas(names.revision_number(status["active"]["revision"]) or 0)
    assert_only_needed_objects(history, status)
    assert_no_later_action(history)
    assert cluster.endpoints == {f"users-{status['active']['revision']}-{n}" for n in range(nodes)}


def assert_wanted_revision(history: History, status: dict[str, Any]) -> None:
    spec, partitions = history.operator.resource["spec"], history.cluster.partitions
    assert partitions is not None
    if conditions_by_type(status)["SpecValid"]["status"] == "False":
        return
    wanted = set(hashes(history, spec, partitions))
    if spec["onPartitionsChanged"] == "Alert":
        wanted |= set(hashes(history, spec, status["active"]["totalPartitions"]))
    assert wanted & {status["active"]["specHash"], status.get("failedHash")}


def hashes(history: History, spec: dict[str, Any], partitions: int) -> Iterator[str]:
    """Yield the hashes of the spec, with the workers of each revision that is left and with those of a new one."""
    for live in [None, *history.cluster.api.of("ConfigMap")]:
        recorded = None if live is None else record_of(live).layout.workers
        yield spec_hash(with_workers(spec, desired_workers(spec, partitions, recorded)), partitions)


def assert_only_needed_objects(history: History, status: dict[str, Any]) -> None:
    spec, api = history.operator.resource["spec"], history.cluster.api
    revisions = {status[role]["revision"] for role in ("active", "candidate") if role in status}
    if "candidate" in status:
        assert status["candidate"]["specHash"] == status["failedHash"]
    for live in api.objects.values():
        labels = live["metadata"]["labels"]
        ours = ("revision", "rekey", "executor")
        label = next((labels[n] for name in ours if (n := f"queryabletopics.io/{name}") in labels), None)
        assert label is None or label in revisions, live["metadata"]["name"]
    active = status["active"]["revision"]
    if conditions_by_type(status)["SpecValid"]["status"] == "True":
        for kind in ("Pod", "PersistentVolumeClaim"):
            found = [
                live["metadata"]["name"]
                for live in api.of(kind)
                if live["metadata"]["labels"].get("queryabletopics.io/revision") == active
            ]
            assert len(found) == spec["replicas"], found


def assert_no_later_action(history: History) -> None:
    operator = history.operator
    observed = operator.observe()
    for later in (0, 60, 3600, 90 * 86400):
        statuses = reported_later(observed.node_statuses, later)
        then = replace(observed, now=observed.now + later, node_statuses=statuses)
        planned = plan(copy.deepcopy(then), SETTINGS)
        assert operator.is_idle(planned, then), (later, planned.status, planned.events, planned.node_updates)


def reported_later(statuses: Any, seconds: float) -> Any:
    """Return the statuses as the nodes repeat them that much later."""
    return {
        revision: {
            ordinal: replace(one, seen=replace(one.seen, at=one.seen.at + seconds))
            for ordinal, one in nodes.items()
        }
        for revision, nodes in statuses.items()
    }


def assert_gone(history: History) -> None:
    operator, cluster = history.operator, history.cluster
    assert operator.gone
    assert not cluster.api.objects, list(cluster.api.objects)
    failed = [event for event in operator.events if event.reason == "CleanupFailed"]
    assert failed or not cluster.groups | cluster.internal_topics
