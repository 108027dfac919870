"""Test faults in a cluster: pods, containers, processes, volumes, children of the resource, the operator itself.

The tests share one view, of two nodes with two replicas of each partition, since a node starts slowly.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.view_on_cluster import SMALL, Platform, ViewOnCluster, available_view, is_ready

pytestmark = pytest.mark.timeout(900)

KILL_JAVA = """
import os, signal
from pathlib import Path
for pid in [int(d.name) for d in Path("/proc").iterdir() if d.name.isdigit()]:
    if Path(f"/proc/{pid}/comm").read_text().strip() == "java":
        os.kill(pid, signal.SIGKILL)
"""
# The first process of a container handles only the signals that it has a handler for; a second signal ends it at once.
END_AT_ONCE = """
import os, signal, time
os.kill(1, signal.SIGTERM)
time.sleep(0.2)
os.kill(1, signal.SIGTERM)
"""


@pytest.fixture(scope="module")
def shared_view(platform: Platform) -> Iterator[ViewOnCluster]:
    with available_view(platform, "faults", {**SMALL, "replicas": 2, "standbyReplicas": 1}) as view:
        yield view


@pytest.fixture
def view(shared_view: ViewOnCluster) -> ViewOnCluster:
    """Return the view once it has recovered."""
    shared_view.wait_until_settled()
    return shared_view


@contextmanager
def reads_are_right(view: ViewOnCluster) -> Iterator[None]:
    """Check reads until the view has recovered: some may get no answer, none gets a missing key or an older value."""
    with view.reading() as seen:
        yield
        view.wait_until_settled()
    assert not seen.of_keys_that_were_not_found, f"{seen}\n{view.platform.story()}"


def restarts(view: ViewOnCluster, pod: str, container: str) -> int:
    statuses = view.pods()[pod]["status"]["containerStatuses"]
    return int(next(status["restartCount"] for status in statuses if status["name"] == container))


def test_killed_pod_is_replaced(view: ViewOnCluster) -> None:
    """A pod replaces a killed one, with its volume."""
    pod = view.pod(1)
    before = view.uids()[pod]
    with reads_are_right(view):
        view.namespace.kubectl("delete", "pod", pod, "--force", "--grace-period=0")
        view.platform.eventually(
            "another pod replaces it", lambda: view.uids().get(pod) not in (None, before)
        )


@pytest.mark.parametrize(
    ("container", "script"), [("serve", END_AT_ONCE), ("ingest", KILL_JAVA)], ids=["serve", "the JVM"]
)
def test_killed_process_restarts(view: ViewOnCluster, container: str, script: str) -> None:
    """A killed process restarts in the same pod."""
    pod = view.pod(0)
    before, uid = restarts(view, pod, container), view.uids()[pod]
    with reads_are_right(view):
        view.execute(0, container, "python", "-c", script)
        if container == "serve":
            view.platform.eventually(
                "the container has restarted", lambda: restarts(view, pod, container) > before
            )
    assert view.uids()[pod] == uid


def test_lost_volume_is_replaced(view: ViewOnCluster) -> None:
    """A node whose volume is lost begins with an empty one, and gets its replicas from the other node."""
    pod = view.pod(1)
    claim = f"data-{pod}"
    before = view.platform.listed("pvc", f"/{claim}")["metadata"]["uid"]
    with reads_are_right(view):
        view.namespace.kubectl("delete", "pvc", claim, "--wait=false")
        view.namespace.kubectl("delete", "pod", pod)
        view.platform.eventually("the node has another volume", lambda: has_another(view, claim, before))


def has_another(view: ViewOnCluster, claim: str, before: str) -> bool:
    return any(
        live["metadata"]["name"] == claim and live["metadata"]["uid"] != before for live in view.live("pvc")
    )


def test_edits_and_deletions_of_children_are_reverted(view: ViewOnCluster) -> None:
    """The operator reverts edits and deletions of children and emits an event; no pod restarts."""
    kubectl, revision = view.namespace.kubectl, f"{view.name}-{view.active}"
    pods, reported = view.uids(), view.events()["DriftCorrected"]
    children = {
        "configmap": revision,
        "networkpolicy": view.name,
        "pdb": revision,
        "service": view.name,
        "serviceaccount": view.name,
        "statefulset": revision,
    }
    edits = {
        "networkpolicy": '{"spec":{"ingress":[]}}',
        "pdb": '{"spec":{"maxUnavailable":2}}',
        "service": '{"spec":{"selector":{"queryabletopics.io/revision":"none"}}}',
        "statefulset": '{"spec":{"template":{"spec":{"terminationGracePeriodSeconds":1}}}}',
    }
    for kind, edit in edits.items():
        kubectl("patch", kind, children[kind], "--type=merge", "--patch", edit)
    view.platform.eventually("every edit is reverted", lambda: was_put_back(view, children))
    view.platform.eventually(
        "an event reports it", lambda: view.events()["DriftCorrected"] >= reported + len(edits)
    )

    reported = view.events()["DriftCorrected"]
    uids = {
        kind: view.platform.listed(kind, f"/{name}")["metadata"]["uid"] for kind, name in children.items()
    }
    for kind, name in children.items():
        kubectl(
            "delete", kind, name, "--wait=false", *(["--cascade=orphan"] if kind == "statefulset" else [])
        )
    view.platform.eventually(
        "all children are recreated",
        lambda: all(
            any(o["metadata"]["name"] == name and o["metadata"]["uid"] != uids[kind] for o in view.live(kind))
            for kind, name in children.items()
        ),
    )
    view.platform.eventually("an event reports it", lambda: view.events()["DriftCorrected"] > reported)
    view.wait_until_settled()
    assert view.uids() == pods
    with view.no_read_fails():
        pass


def was_put_back(view: ViewOnCluster, children: dict[str, str]) -> bool:
    spec: dict[str, Any] = {
        kind: view.platform.listed(kind, f"/{name}").get("spec", {}) for kind, name in children.items()
    }
    return bool(
        spec["networkpolicy"].get("ingress")
        and spec["pdb"]["maxUnavailable"] == 1
        and spec["service"]["selector"]["queryabletopics.io/revision"] == view.active
        and spec["statefulset"]["template"]["spec"]["terminationGracePeriodSeconds"] > 1
    )


def test_scaling_continues_after_the_operator_is_killed(view: ViewOnCluster) -> None:
    """The next operator completes the scaling, and no read fails."""
    with view.no_read_fails():
        view.scale(3)
        view.platform.eventually("the new pod exists", lambda: len(view.pods()) == 3)
        view.platform.kill_operator()
        view.platform.operator_answers()
    assert {node for serving in view.placement()["serving"] for node in serving} == {0, 1, 2}
    assert {len(serving) for serving in view.placement()["serving"]} == {2}
    view.scale(2)


def test_rollout_continues_after_the_operator_is_killed(view: ViewOnCluster) -> None:
    """The next operator completes the rollout and retires the old revision, and no read fails."""
    before = int(view.active[1:])
    killed: set[str] = set()
    with view.no_read_fails():
        view.patch(redeployNonce=before)
        while killed < {"HydratingCandidate", "Retiring"}:
            view.platform.eventually(
                "the next phase begins", lambda: view.status["phase"] not in {"Ready", *killed}
            )
            killed.add(view.status["phase"])
            view.platform.kill_operator()
            view.platform.operator_answers()
    assert view.active == f"r{before + 1}"
    assert {o["metadata"]["name"] for o in view.live("statefulset")} == {f"{view.name}-r{before + 1}"}
    outcomes = [entry["outcome"] for entry in view.status["history"]]
    assert outcomes[:2] == ["Active", "Retired"]


def test_node_on_a_lost_host_is_replaced(view: ViewOnCluster) -> None:
    """A pod whose volume binds it to a lost node gets another volume after `replaceAfter`, where there is room."""
    hosts = view.namespace.api.get("/api/v1/nodes").raise_for_status().json()["items"]
    pod = view.pod(1)
    host = view.pods()[pod]["spec"]["nodeName"]
    if len([h for h in hosts if not h["spec"].get("taints")]) < 2:
        pytest.skip("the cluster has one node; this needs a second one that pods can go to")
    view.patch(replaceAfter="5s")
    with reads_are_right(view):
        view.namespace.kubectl("cordon", host)
        try:
            view.namespace.kubectl("delete", "pod", pod, "--force", "--grace-period=0")
            view.platform.eventually("the pod runs on another host", lambda: is_ready(view.pods().get(pod)))
        finally:
            view.namespace.kubectl("uncordon", host)
    assert view.pods()[pod]["spec"]["nodeName"] != host
    view.platform.eventually("an event reports it", lambda: view.events()["NodeReplaced"] >= 1)
