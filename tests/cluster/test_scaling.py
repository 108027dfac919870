"""Test what a user changes under reads: number of nodes and replicas, pod template, transformation. No read fails.

The tests share one view and build on one another, since a node starts slowly.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.view_on_cluster import SMALL, Platform, ViewOnCluster, available_view, is_ready

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def shared_view(platform: Platform) -> Iterator[ViewOnCluster]:
    with available_view(platform, "scaling", {**SMALL, "view": {"changes": True}}) as view:
        yield view


@pytest.fixture
def view(shared_view: ViewOnCluster) -> ViewOnCluster:
    """Return the view once it has settled after the earlier test."""
    shared_view.wait_until_settled()
    return shared_view


def test_scale_out_spreads_the_partitions(view: ViewOnCluster) -> None:
    """`kubectl scale qt` to 3 spreads the partitions over all three nodes."""
    with view.no_read_fails():
        view.scale(3)
    assert {node for serving in view.placement()["serving"] for node in serving} == {0, 1, 2}


def test_scale_in_removes_the_highest_ordinal(view: ViewOnCluster) -> None:
    """`kubectl scale qt` to 2 removes the highest ordinal and its volume."""
    view.scale(3)
    view.wait_until_settled()
    with view.no_read_fails():
        view.scale(2)
    assert sorted(view.pods()) == [view.pod(0), view.pod(1)]
    view.platform.eventually("its volume is deleted", lambda: len(view.live("pvc")) == 2)


def test_standby_replica_is_added(view: ViewOnCluster) -> None:
    """Each partition gets a standby replica."""
    view.scale(2)
    view.wait_until_settled()
    with view.no_read_fails():
        view.patch(standbyReplicas=1)
    assert [sorted(serving) for serving in view.placement()["serving"]] == [[0, 1]] * 4


@pytest.fixture
def two_nodes(view: ViewOnCluster) -> ViewOnCluster:
    """Return the view with two nodes and a standby replica of each partition."""
    view.patch(replicas=2, standbyReplicas=1)
    view.wait_until_settled()
    return view


def test_new_pod_template_recreates_pods_one_by_one(two_nodes: ViewOnCluster) -> None:
    """A new pod template recreates the pods one after the other, under the same revision."""
    view, before, active = two_nodes, two_nodes.uids(), two_nodes.active
    with view.no_read_fails():
        view.patch(podTemplate={"annotations": {"example.com/restarted": "yes"}})
        view.platform.eventually("all pods were replaced", lambda: _are_others(view, before))
    assert view.active == active
    for pod in view.pods().values():
        assert pod["metadata"]["annotations"]["example.com/restarted"] == "yes"


def _are_others(view: ViewOnCluster, before: dict[str, str]) -> bool:
    """Return whether all pods were replaced; check that two are never missing together."""
    pods = view.pods()
    assert sum(not is_ready(pods.get(name)) for name in before) <= 1
    return all(name in pods and pods[name]["metadata"]["uid"] != uid for name, uid in before.items())


def test_broken_pod_template_stops_at_the_first_pod(two_nodes: ViewOnCluster) -> None:
    """A broken template stops at the first pod and leaves the others; another template repairs it."""
    view, before = two_nodes, two_nodes.uids()
    first, last = view.pod(0), view.pod(1)
    with view.no_read_fails():
        view.patch(image="queryable-topics.invalid/none:1")
        view.platform.eventually("the last pod cannot start", lambda: _waits(view, last))
        view.platform.eventually(
            "the condition has the reason", lambda: _condition(view, "Progressing")["reason"] == "Rolling"
        )
        assert view.uids()[first] == before[first]
        view.patch(image=None)
        view.platform.eventually("the last pod runs again", lambda: is_ready(view.pods().get(last)))
    assert view.uids()[first] == before[first]


def _waits(view: ViewOnCluster, pod: str) -> bool:
    statuses = view.pods().get(pod, {}).get("status", {}).get("containerStatuses", ())
    return any("ImagePull" in str(s["state"].get("waiting")) for s in statuses)


def _condition(view: ViewOnCluster, kind: str) -> dict[str, str]:
    return next(condition for condition in view.status["conditions"] if condition["type"] == kind)


def test_new_transformation_rolls_out_a_revision(two_nodes: ViewOnCluster) -> None:
    """A new revision hydrates beside the old one and takes over, also for a client that follows the changes; the old one is
    removed, and `kubectl get -w` shows the phases.
    """
    view, before = two_nodes, int(two_nodes.active[1:])
    with watched(view) as phases, view.no_read_fails("read-and-follow"):
        view.patch(
            value={"schema": "n LONG"},
            transform={"sql": "SELECT key, value.n AS n, true AS again FROM records"},
        )
        view.platform.eventually("the rollout begins", lambda: view.status["phase"] != "Ready")
    assert view.active == f"r{before + 1}"
    assert view.values("key-1")["key-1"][1]["again"] is True
    old = f"{view.name}-r{before}"
    for kind in ("configmap", "pdb", "pod", "pvc", "secret", "service", "statefulset"):
        left = [o["metadata"]["name"] for o in view.live(kind) if o["metadata"]["name"].startswith(old)]
        assert left == [], kind
    assert phases == ["Ready", "HydratingCandidate", "CuttingOver", "Retiring", "Ready"]
    assert {"RolloutStarted", "HydrationComplete", "CutOver", "Retired"} <= view.events().keys()


@contextmanager
def watched(view: ViewOnCluster) -> Iterator[list[str]]:
    """Collect the phases that `kubectl get qt -w` shows during the block."""
    command = ["kubectl", "--namespace", view.namespace.name, "get", "qt", view.name, "--watch"]
    phases: list[str] = []
    with subprocess.Popen(
        [*command, '--output=jsonpath={.status.phase}{"\\n"}'], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield phases
        finally:
            process.terminate()
            output, _ = process.communicate(timeout=30)
    for phase in output.split():
        if phases[-1:] != [phase]:
            phases.append(phase)
