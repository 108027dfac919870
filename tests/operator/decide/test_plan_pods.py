"""Test the plan for pods: which are lost, what keeps them from running, and which restarts next."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from queryable_app.placement.assignment import Placement
from queryable_operator.build.settings_map import config_map, record_of
from queryable_operator.decide.actions import Plan
from queryable_operator.decide.plan import plan
from queryable_operator.rollout.live_revision import revisions_of
from queryable_operator.rollout.placements import PlacementInputs, lost_pods
from queryable_operator.rollout.pod import text_of
from queryable_operator.spec.observed import Host, Observed, Ref
from queryable_operator.spec.pods import PodIndex
from queryable_operator.spec.resource import view_of
from tests.operator.decide.test_plan import (
    CONFIG_MAP,
    changed,
    condition,
    edited,
    merge,
    standing,
    with_node_status,
    writes,
)
from tests.operator.histories.operator import SETTINGS

POD, CLAIM = Ref("Pod", "users-r1-1"), Ref("PersistentVolumeClaim", "data-users-r1-1")
LATER = 3600.0  # long beyond replaceAfter
NO_FIT = "0/6 nodes are available: 6 node(s) had volume node affinity conflict."


def away(observed: Observed, **scheduled: str) -> Observed:
    """Return an observation in which node 1 has not been ready for an hour."""

    def edit(pod: Any) -> None:
        since = text_of(observed.now)
        conditions = [{"type": "Ready", "status": "False", "lastTransitionTime": since}]
        if scheduled:
            pod["spec"].pop("nodeName")
            conditions.append(
                {"type": "PodScheduled", "status": "False", "lastTransitionTime": since, **scheduled}
            )
        pod["status"]["conditions"] = conditions

    moved = edited(observed, POD, edit)
    later_statuses = {
        1: {
            o: replace(s, seen=replace(s.seen, at=s.seen.at + LATER))
            for o, s in observed.node_statuses[1].items()
            if o != 1
        }
    }
    return replace(moved, now=observed.now + LATER, node_statuses=later_statuses)


def with_hosts(observed: Observed, edit: Callable[[dict[str, Host]], Any]) -> Observed:
    hosts = dict(observed.hosts or {})
    edit(hosts)
    return replace(observed, hosts=hosts)


def host_of(observed: Observed) -> str:
    return str(observed.children[POD]["spec"]["nodeName"])


def placement_moves(planned: Plan) -> bool:
    """Return whether the plan moves replicas away from node 1."""
    (config_map,) = [m for m in planned.apply if m["kind"] == "ConfigMap"]
    return str(config_map["data"]["placement.json"]) != standing_placement()


def standing_placement() -> str:
    return str(standing().children[Ref("ConfigMap", "users-r1")]["data"]["placement.json"])


HOSTS: Mapping[str, tuple[Callable[[dict[str, Host]], Any], bool]] = {
    "its host is ready": (lambda hosts: None, False),
    "its host does not answer": (
        lambda hosts: hosts.update({host_of(standing()): Host(False, False, None)}),
        True,
    ),
    "its host is deleted": (lambda hosts: hosts.pop(host_of(standing())), True),
}


@pytest.mark.parametrize("case", HOSTS)
def test_node_is_lost_with_its_host(case: str) -> None:
    """A node on a lost host is lost: others take over before any of its objects is deleted."""
    edit, lost = HOSTS[case]
    planned = plan(with_hosts(away(standing()), edit), SETTINGS)

    assert placement_moves(planned) is lost
    assert (planned.delete, planned.force_delete) == ((), ())


@pytest.mark.parametrize(
    ("message", "phase", "lost"),
    [
        (NO_FIT, "Bound", True),
        (NO_FIT, "Lost", True),
        ("0/6 nodes are available: pod has unbound immediate PersistentVolumeClaims.", "Pending", False),
        ("0/6 nodes are available: 6 Insufficient memory.", "Bound", False),
    ],
)
def test_node_is_lost_when_no_host_reaches_its_volume(message: str, phase: str, lost: bool) -> None:
    """A pod that waits for a volume or for memory is not lost: recreating it would change nothing."""
    observed = away(standing(), message=message)
    observed = edited(observed, CLAIM, lambda claim: claim.update(status={"phase": phase}))

    assert placement_moves(plan(observed, SETTINGS)) is lost


def test_volume_with_the_only_replica_outlives_its_host() -> None:
    """The pod is recreated and waits for the volume, which may come back with the data."""
    observed = away(standing(standbys=0))
    planned = plan(with_hosts(observed, lambda hosts: hosts.pop(host_of(observed))), SETTINGS)

    assert (planned.delete, planned.force_delete) == ((), (POD,))


def test_unreachable_volume_is_deleted_with_the_only_replica() -> None:
    """No pod could ever run with it."""
    planned = plan(away(standing(standbys=0), message=NO_FIT), SETTINGS)

    assert (set(planned.delete), planned.force_delete) == ({POD, CLAIM}, ())


def test_suspended_view_retains_unreachable_volumes() -> None:
    """A view that is suspended while hosts are down finds every volume afterwards."""
    observed = changed(away(standing(standbys=0), message=NO_FIT), suspended=True)
    planned = plan(observed, SETTINGS)

    assert (planned.delete, planned.force_delete) == ((), ())


def test_pod_problem_is_reported() -> None:
    """The message of a pod that cannot start is Kubernetes' own."""
    observed = away(standing(), message="0/6 nodes are available: 6 Insufficient memory.")

    assert (
        "users-r1-1: 0/6 nodes are available: 6 Insufficient memory."
        in condition(plan(observed, SETTINGS), "Degraded")[2]
    )


def test_image_pull_failure_is_reported() -> None:
    """The kubelet alternates between two reasons; status has one."""
    waiting = [{"state": {"waiting": {"reason": reason}}} for reason in ("ErrImagePull", "ImagePullBackOff")]
    messages = set()
    for state in waiting:
        pod = copy.deepcopy(dict(away(standing()).children[POD]))
        pod["status"]["containerStatuses"] = [state]
        observed = edited(away(standing()), POD, lambda live: live.update(pod))  # noqa: B023  (called at once)
        messages.add(condition(plan(observed, SETTINGS), "Degraded")[2])

    assert len(messages) == 1
    assert messages.pop().endswith("users-r1-1: ImagePullBackOff")


def ending(observed: Observed, ago: float) -> Observed:
    """Return an observation in which node 1, ready for an hour, has been terminating for so many seconds."""
    now = observed.now + LATER
    times = {"deletionTimestamp": text_of(now - ago + 45), "deletionGracePeriodSeconds": 45}
    moved = edited(observed, POD, lambda pod: pod["metadata"].update(times))
    statuses = {o: replace(s, seen=replace(s.seen, at=now)) for o, s in observed.node_statuses[1].items()}
    return replace(moved, now=now, node_statuses={1: statuses})


def lost_ones(observed: Observed) -> frozenset[PodIndex]:
    placement_inputs = PlacementInputs(observed.now, SETTINGS.cluster_domain, observed.hosts)
    return lost_pods(view_of(observed.resource), revisions_of(observed)[1], placement_inputs)


@pytest.mark.parametrize(("ago", "missed"), [(0, False), (59, False), (60, True)])
def test_terminating_pod_is_unready_since_its_deletion(ago: float, missed: bool) -> None:
    """A restart is no problem, however long the pod was ready before."""
    planned = plan(ending(standing(), ago), SETTINGS)

    assert planned.status is not None
    assert (condition(planned, "Degraded")[1] == "NodesNotReady") is missed


@pytest.mark.parametrize(("ago", "lost"), [(0, False), (19, False), (20, True)])
def test_terminating_pod_on_a_lost_host_is_lost_since_its_deletion(ago: float, lost: bool) -> None:
    """A terminating pod on a lost host is lost `replaceAfter` after its deletion."""
    observed = with_hosts(ending(standing(), ago), lambda hosts: hosts.pop(host_of(standing())))

    assert lost_ones(observed) == ({1} if lost else set())


@pytest.mark.parametrize(("ago", "lost"), [(0, False), (45 + 19, False), (45 + 20, True)])
def test_stuck_pod_is_lost_when_hosts_are_unknown(ago: float, lost: bool) -> None:
    """A stuck pod on an unknown host is lost after its grace period and `replaceAfter`."""
    observed = replace(ending(standing(), ago), hosts=None)

    assert lost_ones(observed) == ({1} if lost else set())


# --- rolling restarts


def outdated(*ordinals: int) -> Observed:
    observed = standing()
    for ordinal in ordinals:
        pod = Ref("Pod", f"users-r1-{ordinal}")
        observed = edited(
            observed, pod, lambda p: p["metadata"]["labels"].update({"controller-revision-hash": "old"})
        )
    return observed


def not_ready(observed: Observed, ordinal: int) -> Observed:
    conditions = [{"type": "Ready", "status": "False", "lastTransitionTime": text_of(observed.now)}]
    return edited(
        observed, Ref("Pod", f"users-r1-{ordinal}"), lambda p: p["status"].update(conditions=conditions)
    )


def behind(observed: Observed, ordinal: int) -> Observed:
    seen = observed.node_statuses[1][ordinal].seen
    return with_node_status(observed, ordinal, seen=replace(seen, caught_up=frozenset()))


ROLLS: Mapping[str, tuple[Observed, tuple[str, ...]]] = {
    "no pod is outdated": (outdated(), ()),
    "the highest ordinal restarts first": (outdated(0, 1, 2), ("users-r1-2",)),
    "the next ordinal follows": (outdated(0, 1), ("users-r1-1",)),
    "no pod restarts while an updated one is not ready": (not_ready(outdated(0, 1), 2), ()),
    "no pod restarts before an updated one has caught up": (behind(outdated(0, 1), 2), ()),
    "a pod that is not ready restarts first": (not_ready(outdated(0, 1, 2), 0), ("users-r1-0",)),
    "an unready pod restarts beside an updated unready one": (
        not_ready(not_ready(outdated(0, 1), 0), 2),
        ("users-r1-0",),
    ),
    "a lagging pod restarts before the others": (behind(outdated(0, 1, 2), 1), ("users-r1-1",)),
    "a pod restarts if all lag, since the update may repair them": (
        behind(behind(behind(outdated(0, 1, 2), 0), 1), 2),
        ("users-r1-2",),
    ),
    "no pod restarts while nodes cannot use a Secret": (
        replace(not_ready(outdated(0, 1, 2), 0), secret_problem="the Secret tls does not exist"),
        (),
    ),
}


@pytest.mark.parametrize("case", ROLLS)
def test_pods_restart_one_at_a_time(case: str) -> None:
    """The pod whose restart costs least restarts first, and only one at a time."""
    observed, expected = ROLLS[case]

    assert plan(observed, SETTINGS).evict == expected


def test_no_pod_restarts_with_an_edited_template() -> None:
    """The template is corrected first."""
    observed = edited(
        outdated(0, 1, 2),
        Ref("StatefulSet", "users-r1"),
        lambda s: s["spec"]["template"]["spec"]["containers"][0].update(image="example/edited:1"),
    )
    assert plan(copy.deepcopy(observed), SETTINGS).evict == ()


# --- scaling


def placed(planned: Plan) -> Placement:
    (config_map,) = [m for m in planned.apply if m["kind"] == "ConfigMap"]
    return Placement.from_json(config_map["data"]["placement.json"])


def test_node_gets_replicas_after_its_first_report() -> None:
    """A new node has only its address in the placement until its first report."""
    placement = placed(plan(changed(standing(), replicas=4), SETTINGS))

    assert len(placement.addresses) == 4
    assert not any(placement.hydrating)
    assert placement.assigned_to(3) == ()


def test_volume_of_a_leaving_node_outlives_its_pod() -> None:
    """A pod that is down while its replicas move comes back to them."""
    observed = changed(standing(), replicas=2)
    written = writes(plan(observed, SETTINGS), observed)[CONFIG_MAP]
    observed = edited(observed, CONFIG_MAP, lambda live: merge(live, written))
    children = {ref: live for ref, live in observed.children.items() if ref != Ref("Pod", "users-r1-2")}

    assert plan(replace(observed, children=children), SETTINGS).delete == ()


def test_leaving_pod_stays_while_the_placement_has_its_address() -> None:
    """A leaving pod runs and serves until other nodes have its replicas."""
    observed = changed(standing(), replicas=2)
    written = writes(plan(observed, SETTINGS), observed)[CONFIG_MAP]
    observed = edited(observed, CONFIG_MAP, lambda live: merge(live, written))
    epoch = placed(plan(observed, SETTINGS)).epoch
    for ordinal in range(3):  # every node follows it
        observed = with_node_status(
            observed, ordinal, seen=replace(observed.node_statuses[1][ordinal].seen, epoch=epoch)
        )

    assert replicas(plan(observed, SETTINGS)) == 3


def left_alone() -> Observed:
    """Return an observation in which the placement no longer has node 2, and every node follows it."""
    observed = changed(standing(), replicas=2)
    record = record_of(writes(plan(observed, SETTINGS), observed)[CONFIG_MAP])
    placement = record.placement
    without = replace(
        placement,
        epoch=placement.epoch + 5,
        addresses=placement.addresses[:2],
        serving=((0, 1),) * placement.partitions,
        hydrating=((),) * placement.partitions,
    )
    made = config_map(view_of(observed.resource), 1, replace(record, placement=without))
    observed = edited(observed, CONFIG_MAP, lambda live: merge(live, made))
    for ordinal in range(3):
        observed = with_node_status(
            observed, ordinal, seen=replace(observed.node_statuses[1][ordinal].seen, epoch=without.epoch)
        )
    return observed


def replicas(planned: Plan) -> int:
    (stateful_set,) = [m for m in planned.apply if m["kind"] == "StatefulSet"]
    return int(stateful_set["spec"]["replicas"])


@pytest.mark.parametrize("ordinal", range(3))
def test_pod_leaves_when_every_node_follows_the_placement(ordinal: int) -> None:
    """A node with an older placement still sends it reads; a silent node does not delay it."""
    observed = left_alone()
    older = replace(observed.node_statuses[1][ordinal].seen, epoch=1)
    silent = replace(older, at=observed.now - 10)

    assert replicas(plan(observed, SETTINGS)) == 2
    assert replicas(plan(with_node_status(observed, ordinal, seen=older), SETTINGS)) == 3
    assert replicas(plan(with_node_status(observed, ordinal, seen=silent), SETTINGS)) == 2


def test_volume_is_deleted_after_its_pod() -> None:
    """A claim that is deleted in use would block the pod of a later scale-up."""
    pod, claim = Ref("Pod", "users-r1-2"), Ref("PersistentVolumeClaim", "data-users-r1-2")
    there = edited(left_alone(), Ref("StatefulSet", "users-r1"), lambda live: live["spec"].update(replicas=2))
    without_pod = replace(there, children={ref: live for ref, live in there.children.items() if ref != pod})

    assert (plan(there, SETTINGS).delete, plan(without_pod, SETTINGS).delete) == ((), (claim,))


def test_restarts_wait_for_a_usable_secret() -> None:
    """The conditions name the problem of the Secret, and say that restarts wait for it."""
    planned = plan(replace(outdated(0, 1, 2), secret_problem="spec.tls.secretRef: no tls"), SETTINGS)

    assert condition(planned, "Degraded") == ("True", "SecretUnusable", "spec.tls.secretRef: no tls")
    assert condition(planned, "Progressing") == (
        "True",
        "Rolling",
        "Pods restart one after the other. They wait for a Secret that nodes can use.",
    )
