"""Test the deletion of a resource: what is removed, what is retained, and what it waits for."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.operator.histories.cluster import Cluster, SimulatedHost
from tests.operator.histories.history import delete_resource
from tests.operator.histories.story import change, condition, is_gone_after, live, reasons, settled, status


def test_unreachable_kafka_delays_a_deletion_for_five_minutes() -> None:
    """An unreachable Kafka delays a deletion for five minutes; then an event names what may remain, and the resource goes."""
    history = settled()
    history.cluster.kafka_is_there = False
    delete_resource(history)
    assert is_gone_after(history, 100) is False
    assert condition(history, "Degraded") == ("True", "CleanupFailed")
    assert is_gone_after(history, 400)
    assert "CleanupFailed" in reasons(history)
    assert not history.cluster.api.objects


def test_resource_without_a_revision_does_not_wait_for_kafka() -> None:
    """A resource that never had a revision is released at once although Kafka is unreachable."""
    cluster = Cluster(random.Random(7), {"host-0": SimulatedHost("zone-0")})
    cluster.kafka_is_there = False
    history = settled(cluster)
    assert status(history)["phase"] == "Pending"
    delete_resource(history)
    history.run_pass()
    assert history.operator.gone
    assert reasons(history) == []


@pytest.mark.parametrize("forgotten", [False, True], ids=["with its status", "and its status"])
def test_kafka_is_cleaned_up_without_children(forgotten: bool) -> None:
    """The deletion of a resource whose children were deleted before still waits for Kafka."""
    history = settled()
    history.cluster.kafka_is_there = False
    history.cluster.api.objects.clear()
    if forgotten:
        history.operator.resource["status"] = {}
    history.guarantees.status_was_touched = True
    delete_resource(history)
    assert is_gone_after(history, 200) is False


def test_retained_objects_stay() -> None:
    """With `deletionPolicy: Retain` volumes and consumer groups outlive the resource."""
    history = settled(deletionPolicy="Retain")
    delete_resource(history)

    assert is_gone_after(history, 200)
    assert {ref.kind for ref in history.cluster.api.objects} == {"PersistentVolumeClaim"}
    assert history.cluster.groups


@pytest.mark.parametrize(
    "meanwhile", [{}, {"paused": True}, {"replicas": 0}], ids=["well", "paused", "wrong"]
)
def test_volumes_stay_with_a_policy_changed_just_before(meanwhile: dict[str, Any]) -> None:
    """A deletion policy that changed just before counts, also for a paused view or an invalid spec."""
    history = settled()
    claims = {ref for ref in history.cluster.api.objects if ref.kind == "PersistentVolumeClaim"}
    change(history, **meanwhile)
    history.settle()
    change(history, deletionPolicy="Retain")
    delete_resource(history)

    assert is_gone_after(history, 200)
    assert set(history.cluster.api.objects) == claims


def test_retained_volumes_outlive_a_new_resource_with_the_name() -> None:
    """A new resource with the name has later revision numbers and leaves the retained volumes unchanged."""
    first = settled(deletionPolicy="Retain")
    delete_resource(first)
    assert is_gone_after(first, 200)
    retained = set(first.cluster.api.objects)
    history = settled(first.cluster)
    assert status(history)["active"]["revision"] == "r2"
    change(history, topic="others")
    history.settle()

    assert status(history)["active"]["revision"] == "r3"
    claims = {ref for ref in history.cluster.api.objects if ref.kind == "PersistentVolumeClaim"}
    assert {ref for ref in claims if "-r3-" not in ref.name} == retained


def test_deletion_does_not_wait_for_a_lost_host() -> None:
    """A deletion does not wait for a lost host, whose kubelet cannot confirm that pods have ended."""
    history = settled()
    history.cluster.lose_host(live(history, "Pod", "users-r1-0")["spec"]["nodeName"])
    history.pass_time(15)
    delete_resource(history)

    assert is_gone_after(history, 200)
