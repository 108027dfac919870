"""Test a view whose pods have several workers: placement, scaling, restarts, losses, and a change of their number."""

from __future__ import annotations

import random
from typing import Any

import pytest

from queryable_app.placement.assignment import Placement
from queryable_operator.build.settings_map import RevisionRecord, record_of
from queryable_operator.spec.observed import Ref
from tests.operator.histories.cluster import Cluster, SimulatedHost, ports_of
from tests.operator.histories.history import History
from tests.operator.histories.story import change, condition, live, pods_ready, reasons, settled, status


def of_two(**spec: Any) -> History:
    """Return a settled view of three pods with two workers each."""
    return settled(serve={"workers": 2}, **spec)


def record(history: History, revision: str = "r1") -> RevisionRecord:
    return record_of(live(history, "ConfigMap", f"users-{revision}"))


def assigned(placement: Placement, *ordinals: int) -> set[int]:
    return {partition for ordinal in ordinals for partition in placement.assigned_to(ordinal)}


def assert_serves(history: History, revision: str = "r1") -> None:
    assert condition(history, "Available") == ("True", "Serving")
    assert (status(history)["active"]["revision"], status(history)["phase"]) == (revision, "Ready")
    history.guarantees.no_pod_has_two_replicas(int(revision[1:]))


def test_pods_are_counted_and_nodes_are_placed() -> None:
    """Status counts three pods, and the placement names six nodes."""
    history = of_two()

    assert (status(history)["nodes"], status(history)["replicas"]) == ("3/3", 3)
    placement = record(history).placement
    assert [address.rpartition(":")[2] for address in placement.addresses] == ["8081", "8082"] * 3
    assert {len(placement.assigned_to(ordinal)) for ordinal in range(6)} <= {1, 2}
    assert_serves(history)


def test_another_number_of_workers_makes_a_revision() -> None:
    """A revision with two workers hydrates beside the one with one, and takes over."""
    history = settled()
    change(history, serve={"workers": 2})
    history.settle()

    assert_serves(history, "r2")
    assert record(history, "r2").layout.workers == 2
    assert len(history.cluster.nodes) == 6
    assert "RolloutStarted" in reasons(history)

    change(history, serve={})
    history.settle()
    assert_serves(history, "r2")

    change(history, serve={"workers": 1})
    history.settle()
    assert_serves(history, "r3")
    assert len(record(history, "r3").placement.addresses) == 3


def test_upgrade_of_the_operator_keeps_one_worker() -> None:
    """A revision of an earlier release records no number, and keeps its one worker although the resource states CPUs."""
    cpus = {"resources": {"serve": {"requests": {"cpu": "4"}}}}
    history = settled(serve={"workers": 1}, podTemplate=cpus)
    pods = {pod["metadata"]["uid"] for pod in history.cluster.api.of("Pod")}
    change(history, serve={})  # as it was before the field existed
    history.settle()

    assert_serves(history)
    assert {pod["metadata"]["uid"] for pod in history.cluster.api.of("Pod")} == pods
    assert "serve" not in record(history).spec


def test_both_revisions_are_admitted_during_the_rollout() -> None:
    """The NetworkPolicy has the workers' ports before a pod of the candidate exists, and until it has gone."""
    history = settled()
    change(history, serve={"workers": 3})
    for _ in range(300):
        history.run_pass()
        history.pass_time(1)
        (ports,) = [rule["ports"] for rule in live(history, "NetworkPolicy", "users")["spec"]["ingress"]]
        if any(len(ports_of(pod)) == 3 for pod in history.cluster.api.of("Pod")):
            assert ports[1:] == [{"protocol": "TCP", "port": 8081, "endPort": 8083}]
    assert_serves(history, "r2")


def test_more_cpus_restart_pods_and_keep_the_workers() -> None:
    """The number follows from the CPUs when a revision is made; later CPUs restart pods of the same revision."""
    history = settled(podTemplate={"resources": {"serve": {"requests": {"cpu": "2"}}}})
    assert record(history).layout.workers == 2

    change(history, podTemplate={"resources": {"serve": {"requests": {"cpu": "4"}}}})
    history.settle()
    assert_serves(history)
    assert record(history).layout.workers == 2
    assert {len(ports_of(pod)) for pod in history.cluster.api.of("Pod")} == {2}

    change(history, redeployNonce=1)
    history.settle()
    assert_serves(history, "r2")
    assert record(history, "r2").layout.workers == 4


def test_pods_join_and_leave_whole() -> None:
    """New pods get replicas on both workers; a pod that leaves is deleted, with its volume, when both workers are empty."""
    history = of_two()
    change(history, replicas=4)
    history.settle()
    assert status(history)["nodes"] == "4/4"
    assert assigned(record(history).placement, 6, 7)

    change(history, replicas=2)
    for _ in range(300):
        history.run_pass()
        placement = record(history).placement
        for pod in (2, 3):
            if history.cluster.api.get("PersistentVolumeClaim", f"data-users-r1-{pod}") is None:
                assert not assigned(placement, 2 * pod, 2 * pod + 1)
        history.pass_time(1)
    assert len(history.cluster.api.of("PersistentVolumeClaim")) == 2
    assert len(record(history).placement.addresses) == 4
    assert_serves(history)


def test_one_pod_after_the_other_restarts() -> None:
    """A change of the template restarts every pod once; the next one waits until both workers have caught up."""
    history = of_two()
    before = {pod["metadata"]["uid"] for pod in history.cluster.api.of("Pod")}
    change(history, podTemplate={"labels": {"team": "a"}})
    history.settle()

    assert not before & {pod["metadata"]["uid"] for pod in history.cluster.api.of("Pod")}
    assert_serves(history)


def test_lost_pod_loses_all_of_its_nodes() -> None:
    """When a host stays away, the replicas of both workers move, and the pod is replaced elsewhere with a new volume."""
    history = of_two()
    pod = live(history, "Pod", "users-r1-1")
    uid = live(history, "PersistentVolumeClaim", "data-users-r1-1")["metadata"]["uid"]
    history.cluster.lose_host(pod["spec"]["nodeName"])
    history.settle()

    assert "NodeReplaced" in reasons(history)
    assert live(history, "PersistentVolumeClaim", "data-users-r1-1")["metadata"]["uid"] != uid
    assert assigned(record(history).placement, 2, 3)
    assert_serves(history)


def test_pods_on_one_host_are_domains() -> None:
    """Where all pods share a host, the standby of a partition is still in another pod, also after scaling."""
    cluster = Cluster(random.Random(7), {"host-0": SimulatedHost("zone-0")}, partitions=12)
    history = settled(cluster, serve={"workers": 3}, replicas=2)
    assert_serves(history)
    change(history, replicas=3)
    history.settle()
    assert_serves(history)


def test_survivors_do_not_get_two_replicas_of_a_partition() -> None:
    """With two pods, the loss of one leaves one replica of each partition until it is replaced: two in a pod protect nothing."""
    history = of_two(replicas=2)
    for host in list(history.cluster.hosts):
        if host != live(history, "Pod", "users-r1-0")["spec"]["nodeName"]:
            history.cluster.lose_host(host)
    sizes = []
    for _ in range(120):
        history.run_pass()
        history.pass_time(1)
        placement = record(history).placement
        for replicas in zip(placement.serving, placement.hydrating, strict=True):
            pods = [ordinal // 2 for ordinal in (*replicas[0], *replicas[1])]
            assert len(set(pods)) == len(pods), placement
        sizes.append({len(serving) for serving in placement.serving})

    assert {1} in sizes
    assert sizes[-1] == {2}


def test_killed_worker_returns_to_its_replicas() -> None:
    """The death of one worker moves nothing: its pod is not ready until it has started again."""
    history = of_two()
    placement = record(history).placement
    history.cluster.kill(next(node.key for node in history.cluster.nodes.values() if node.ordinal == 3))
    history.settle()

    assert record(history).placement == placement
    assert pods_ready(history) == {"users-r1-0", "users-r1-1", "users-r1-2"}
    assert_serves(history)


@pytest.mark.parametrize("kinds", [["ConfigMap"], ["StatefulSet"], ["ConfigMap", "StatefulSet"]])
def test_recovered_revision_has_its_workers(kinds: list[str]) -> None:
    """A ConfigMap that is deleted is recovered with the number of workers, although the spec states none."""
    history = settled(podTemplate={"resources": {"serve": {"requests": {"cpu": "2"}}}})
    there = record(history)
    for kind in kinds:
        if kind == "StatefulSet":
            for node in history.cluster.nodes.values():
                history.guarantees.note_destroyed(1, node.disk.replicas)
        history.cluster.api.delete(Ref(kind, "users-r1"))
    history.settle()

    assert (record(history).layout, record(history).spec_hash) == (there.layout, there.spec_hash)
    assert_serves(history)


def test_messages_name_the_pod_of_a_node() -> None:
    """A worker's failure names its pod, and a full disk is a pod's."""
    history = of_two()
    for node in history.cluster.nodes.values():
        node.full = node.ordinal in (2, 3)
    for _ in range(5):
        history.run_pass()
        history.pass_time(1)

    assert condition(history, "Degraded") == ("True", "DiskHighWater")
    assert status(history)["message"].startswith("The disks of pods 1 are fuller")


def test_scaling_beyond_the_nodes_of_a_placement_is_refused() -> None:
    """A placement names at most 1000 nodes, whether the workers are stated or follow from the CPUs."""
    history = settled(podTemplate={"resources": {"serve": {"requests": {"cpu": "64"}}}})
    history.cluster.partitions = 64
    change(history, redeployNonce=1)
    history.settle()
    change(history, replicas=20)
    history.run_pass()

    assert condition(history, "SpecValid") == ("False", "SpecInvalid")
    assert "20 pods with 64 workers each" in status(history)["message"]
