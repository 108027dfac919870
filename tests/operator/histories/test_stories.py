"""Test one event each in the simulated cluster, and its consequences."""

from __future__ import annotations

import pytest

from queryable_operator.report.status import service_of
from queryable_operator.spec.observed import Ref
from tests.operator.histories.history import History
from tests.operator.histories.nodes import NEVER
from tests.operator.histories.operator import SETTINGS
from tests.operator.histories.story import (
    change,
    condition,
    live,
    pods_ready,
    reasons,
    settled,
    status,
    until_phase,
)

# --- a change of the view


def test_rollout_goes_through_its_phases() -> None:
    """A new revision hydrates and takes over, and the old one is removed; each step is an event."""
    history = settled()
    change(history, topic="others")
    history.settle()

    assert reasons(history) == ["RolloutStarted", "HydrationComplete", "CutOver", "Retired"]
    assert status(history)["active"]["revision"] == "r2"
    assert [(e["revision"], e["outcome"]) for e in status(history)["history"]] == [
        ("r2", "Active"),
        ("r1", "Retired"),
    ]
    assert not [ref for ref in history.cluster.api.objects if "users-r1" in ref.name]


@pytest.mark.parametrize("on_failure", ["DeleteCandidate", "KeepCandidate"])
def test_candidate_that_never_hydrates_is_dropped(on_failure: str) -> None:
    """A candidate that passes its deadline is dropped: the old revision stays active, and the change is not tried again."""
    history = settled()
    rollout = history.operator.resource["spec"]["rollout"]
    change(history, transform={"sql": NEVER}, rollout={**rollout, "onFailure": on_failure})
    history.settle()

    assert reasons(history).count("RolloutFailed") == 1
    assert condition(history, "Degraded") == ("True", "RolloutFailed")
    assert status(history)["active"]["revision"] == "r1"
    assert ("candidate" in status(history)) == (on_failure == "KeepCandidate")
    assert status(history)["phase"] == "Ready"


def test_failed_change_is_tried_again_after_a_revert() -> None:
    """Another spec clears the failed hash, and a later change back is tried again."""
    history = settled()
    change(history, transform={"sql": NEVER})
    history.settle()
    history.operator.resource["spec"].pop("transform")
    history.changed()
    history.settle()
    assert "failedHash" not in status(history)

    change(history, transform={"sql": NEVER})
    until_phase(history, "HydratingCandidate")
    assert status(history)["candidate"]["revision"] == "r3"


def changed_again(phase: str, topic: str) -> History:
    """Return a settled view whose topic changed again when the rollout of the first change had this phase."""
    history = settled()
    change(history, topic="others")
    until_phase(history, phase)
    change(history, topic=topic)
    history.settle()
    return history


def test_reverted_spec_cancels_the_candidate() -> None:
    """A reverted spec drops the candidate and leaves the active revision unchanged."""
    history = changed_again("HydratingCandidate", topic="users")

    assert status(history)["active"]["revision"] == "r1"
    assert [(e["revision"], e["outcome"]) for e in status(history)["history"]] == [
        ("r2", "Replaced"),
        ("r1", "Active"),
    ]


def test_new_spec_replaces_the_candidate() -> None:
    """A new spec during a rollout replaces the candidate by one with the next number, which takes over."""
    history = changed_again("HydratingCandidate", topic="third")

    assert status(history)["active"]["revision"] == "r3"
    assert "users-r2" not in {ref.name for ref in history.cluster.api.objects}


def test_spec_changed_during_a_cut_over_follows_it() -> None:
    """A spec that changes during a cut-over rolls out after it, so that the Service never switches back and forth."""
    history = changed_again("CuttingOver", topic="users")

    assert status(history)["active"]["revision"] == "r3"
    assert reasons(history).count("CutOver") == 2


def test_candidate_that_fails_during_the_cut_over_does_not_take_over() -> None:
    """A candidate that fails during the cut-over loses the Service to the old revision, which still serves."""
    history = settled()
    change(history, topic="others")
    until_phase(history, "CuttingOver")
    for node in [n for n in history.cluster.nodes.values() if n.revision == 2]:
        history.cluster.kill(node.key)
        history.operator.resource["spec"]["transform"] = {"sql": NEVER}
    for pod in history.cluster.api.of("Pod"):
        if pod["metadata"]["name"].startswith("users-r2"):
            history.cluster.api.delete(Ref("Pod", pod["metadata"]["name"]))
    for disk in history.cluster.disks.values():
        if disk.placement and ".r2-" in disk.placement.application_id:
            disk.replicas = dict.fromkeys(disk.replicas, 0.0)
    until_phase(history, "HydratingCandidate")
    history.run_pass()

    assert service_of(history.cluster.api.get("Service", "users")) == 1


def test_more_partitions_make_a_new_revision_or_an_alert() -> None:
    """More partitions raise a condition and an event with `onPartitionsChanged: Alert`, and make a revision with `Redeploy`."""
    history = settled(onPartitionsChanged="Alert")
    history.cluster.partitions = 6
    history.settle()
    assert status(history)["active"]["revision"] == "r1"
    assert condition(history, "PartitionsInSync") == ("False", "PartitionsChanged")
    assert "PartitionsChanged" in reasons(history)

    change(history, onPartitionsChanged="Redeploy")
    history.settle()
    assert (status(history)["active"]["revision"], status(history)["active"]["totalPartitions"]) == ("r2", 6)
    assert condition(history, "PartitionsInSync") == ("True", "InSync")


# --- pods and hosts


def test_rolling_restart_takes_one_pod_at_a_time() -> None:
    """A rolling restart recreates every pod, and no two are down at a time."""
    history = settled()
    change(history, podTemplate={"labels": {"team": "a"}})
    fewest = 3
    for _ in range(200):
        history.run_pass()
        history.pass_time(1)
        fewest = min(fewest, len(pods_ready(history)))

    labels = [pod["metadata"]["labels"].get("team") for pod in history.cluster.api.of("Pod")]
    assert (labels, fewest) == (["a"] * 3, 2)


def test_rolling_restart_progresses_until_its_last_pod_is_ready() -> None:
    """`Progressing` is true from the first status with the new spec until the last pod is ready."""
    history = settled()
    change(history, podTemplate={"labels": {"team": "a"}})
    progressing = set()
    for _ in range(200):
        history.run_pass()
        made = {pod["metadata"]["labels"].get("team") for pod in history.cluster.api.of("Pod")} == {"a"}
        if made and len(pods_ready(history)) == 3:
            break
        progressing.add(condition(history, "Progressing")[0])
        history.pass_time(1)
    history.settle()

    assert progressing == {"True"}
    assert condition(history, "Progressing") == ("False", "Settled")


def test_removed_image_returns_to_the_operators_default() -> None:
    """A removed `spec.image` gives the containers the operator's default image again."""
    history = settled()
    images = []
    for image in ("example.com/wrong:1", None):
        change(history, image=image)
        history.settle()
        (stateful_set,) = history.cluster.api.of("StatefulSet")
        images.append(
            {container["image"] for container in stateful_set["spec"]["template"]["spec"]["containers"]}
        )
    assert images == [{"example.com/wrong:1"}, {SETTINGS.node_image}]


def test_image_removed_while_the_secret_is_missing_is_replaced_later() -> None:
    """A removed image restarts no pod while the Secret is missing, since it could not start, and does so afterwards."""
    history = settled(kafka={"bootstrapServers": "kafka:9092", "secretRef": {"name": "users"}})
    for image, digest in (("example.com/wrong:1", "known"), (None, ""), (None, "known")):
        history.operator.kafka_secret_digest = digest
        change(history, image=image)
        history.settle()
    (stateful_set,) = history.cluster.api.of("StatefulSet")
    images = {container["image"] for container in stateful_set["spec"]["template"]["spec"]["containers"]}
    assert images == {SETTINGS.node_image}


def test_lost_host_is_replaced() -> None:
    """The node of a lost host is recreated on another one, and its volume is deleted once other nodes serve its partitions."""
    history = settled()
    lost = live(history, "Pod", "users-r1-1")["spec"]["nodeName"]
    history.cluster.lose_host(lost)
    history.pass_time(15)
    history.settle()

    assert "NodeReplaced" in reasons(history)
    assert condition(history, "Available") == ("True", "Serving")
    assert status(history)["nodes"] == "3/3"
    assert lost not in {pod["spec"]["nodeName"] for pod in history.cluster.api.of("Pod")}


def test_only_replica_on_a_lost_host_waits_for_it() -> None:
    """Without standby replicas a volume on a lost host is deleted only when its pod can run nowhere."""
    history = settled(replicas=2, standbyReplicas=0)
    lost = live(history, "Pod", "users-r1-1")["spec"]["nodeName"]
    claim_uid = live(history, "PersistentVolumeClaim", "data-users-r1-1")["metadata"]["uid"]
    history.cluster.lose_host(lost)
    history.run_passes(6)
    assert live(history, "PersistentVolumeClaim", "data-users-r1-1")["metadata"]["uid"] == claim_uid
    history.settle()

    assert live(history, "PersistentVolumeClaim", "data-users-r1-1")["metadata"]["uid"] != claim_uid
    assert status(history)["nodes"] == "2/2"


def test_recreated_token_restarts_every_pod() -> None:
    """A recreated token restarts every pod, one after the other."""
    history = settled()
    uids = {pod["metadata"]["uid"] for pod in history.cluster.api.of("Pod")}
    history.pass_time(5)
    history.cluster.api.delete(Ref("Secret", "users-r1"))
    history.settle()

    assert not uids & {pod["metadata"]["uid"] for pod in history.cluster.api.of("Pod")}


def test_suspended_view_retains_its_volumes() -> None:
    """A suspended view has volumes and no pods, and resumes without hydration."""
    history = settled()
    epoch = status(history)["placementEpoch"]
    change(history, suspended=True)
    history.settle()
    assert not history.cluster.api.of("Pod")
    assert len(history.cluster.api.of("PersistentVolumeClaim")) == 3
    assert condition(history, "Available") == ("False", "Suspended")

    change(history, suspended=False)
    history.settle()
    assert condition(history, "Available") == ("True", "Serving")
    assert status(history)["placementEpoch"] == epoch


# --- deletions by users


@pytest.mark.parametrize(
    "kind",
    [
        "ConfigMap",
        "StatefulSet",
        "Service",
        "PodDisruptionBudget",
        "Secret",
        "NetworkPolicy",
        "ServiceAccount",
    ],
)
def test_deleted_child_is_recreated(kind: str) -> None:
    """The operator recreates every deleted child with its content, and reports the correction."""
    history = settled()
    placement = live(history, "ConfigMap", "users-r1")["data"]["placement.json"]
    for ref in [ref for ref in history.cluster.api.objects if ref.kind == kind]:
        history.guarantees.service_was_touched = True
        if kind == "StatefulSet":
            for node in history.cluster.nodes.values():
                history.guarantees.note_destroyed(1, node.disk.replicas)
        history.cluster.api.delete(ref)
    history.settle()

    assert live(history, "ConfigMap", "users-r1")["data"]["placement.json"] == placement
    assert condition(history, "Available") == ("True", "Serving")
    assert "DriftCorrected" in reasons(history)
    assert condition(history, "Progressing") == ("False", "Settled")


def test_active_config_map_is_recovered_under_another_spec() -> None:
    """A deleted ConfigMap is rebuilt from the active revision, not from the failed spec."""
    history = settled()
    change(history, transform={"sql": NEVER})
    history.settle()
    made = live(history, "ConfigMap", "users-r1")["data"]
    history.cluster.api.delete(Ref("ConfigMap", "users-r1"))
    history.settle()

    assert live(history, "ConfigMap", "users-r1")["data"] == made
    assert condition(history, "Degraded") == ("True", "RolloutFailed")


@pytest.mark.parametrize("phase", ["HydratingCandidate", "CuttingOver", "Retiring"])
def test_status_lost_during_a_rollout_is_rebuilt(phase: str) -> None:
    """A status that is lost during a rollout is rebuilt from the Service, and the rollout completes."""
    history = settled()
    change(history, topic="others")
    until_phase(history, phase)
    history.operator.resource["status"] = {}
    history.operator.touch()
    history.guarantees.status_was_touched = True
    history.settle()

    assert status(history)["active"]["revision"] == "r2"
    assert status(history)["phase"] == "Ready"
