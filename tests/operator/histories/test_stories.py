"""Single stories in the simulated cluster: one thing happens, and what comes of it is named."""

from __future__ import annotations

import pytest

from queryable_operator.report.status import service_of
from queryable_operator.spec.observed import Ref
from tests.operator.histories.nodes import NEVER
from tests.operator.histories.operator import SETTINGS
from tests.operator.histories.story import (
    change,
    condition,
    pods_ready,
    reasons,
    settled,
    status,
    until_phase,
)

# --- a change of the view


def test_a_change_of_the_view_goes_through_its_phases() -> None:
    """A new revision hydrates, takes over, and the old one goes; each step is an event."""
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
def test_a_candidate_that_never_hydrates_is_dropped(on_failure: str) -> None:
    """After the deadline the old revision serves on, and the change is not tried again."""
    history = settled()
    rollout = history.operator.resource["spec"]["rollout"]
    change(history, transform={"sql": NEVER}, rollout={**rollout, "onFailure": on_failure})
    history.settle()

    assert reasons(history).count("RolloutFailed") == 1
    assert condition(history, "Degraded") == ("True", "RolloutFailed")
    assert status(history)["active"]["revision"] == "r1"
    assert ("candidate" in status(history)) == (on_failure == "KeepCandidate")
    assert status(history)["phase"] == "Ready"


def test_a_failed_change_is_tried_again_when_it_was_put_back_in_between() -> None:
    """A failed hash is forgotten as soon as the spec asks for something else."""
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


def test_a_spec_that_is_put_back_cancels_the_candidate() -> None:
    """The active revision's hash again: nothing has happened."""
    history = settled()
    change(history, topic="others")
    until_phase(history, "HydratingCandidate")
    change(history, topic="users")
    history.settle()

    assert status(history)["active"]["revision"] == "r1"
    assert [(e["revision"], e["outcome"]) for e in status(history)["history"]] == [
        ("r2", "Replaced"),
        ("r1", "Active"),
    ]


def test_a_new_spec_replaces_the_candidate() -> None:
    """The last thing that was asked for is what comes, under a number of its own."""
    history = settled()
    change(history, topic="others")
    until_phase(history, "HydratingCandidate")
    change(history, topic="third")
    history.settle()

    assert status(history)["active"]["revision"] == "r3"
    assert "users-r2" not in {ref.name for ref in history.cluster.api.objects}


def test_a_spec_that_changes_while_it_cuts_over_is_followed_afterwards() -> None:
    """The cut-over is finished first, so that the Service never goes back and forth."""
    history = settled()
    change(history, topic="others")
    until_phase(history, "CuttingOver")
    change(history, topic="users")
    history.settle()

    assert status(history)["active"]["revision"] == "r3"
    assert reasons(history).count("CutOver") == 2


def test_a_candidate_that_falls_apart_while_it_cuts_over_takes_nothing_over() -> None:
    """The Service is back at the old revision, which was kept warm."""
    history = settled()
    change(history, topic="others")
    until_phase(history, "CuttingOver")
    for node in [n for n in history.cluster.nodes.values() if n.revision == 2]:
        history.cluster.kill(node.uid)
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
    """onPartitionsChanged decides."""
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


def test_a_roll_takes_one_pod_after_the_other() -> None:
    """Every pod is made anew, and no two are away at a time."""
    history = settled()
    change(history, podTemplate={"labels": {"team": "a"}})
    fewest = 3
    for _ in range(200):
        history.run_pass()
        history.pass_time(1)
        fewest = min(fewest, len(pods_ready(history)))

    labels = [pod["metadata"]["labels"].get("team") for pod in history.cluster.api.of("Pod")]
    assert (labels, fewest) == (["a"] * 3, 2)


def test_a_roll_is_not_settled_before_its_last_pod_is_ready() -> None:
    """From the first status that speaks of the new spec on `Progressing` says that something is under way."""
    history = settled()
    change(history, podTemplate={"labels": {"team": "a"}})
    told = set()
    for _ in range(200):
        history.run_pass()
        made = {pod["metadata"]["labels"].get("team") for pod in history.cluster.api.of("Pod")} == {"a"}
        if made and len(pods_ready(history)) == 3:
            break
        told.add(condition(history, "Progressing")[0])
        history.pass_time(1)
    history.settle()

    assert told == {"True"}
    assert condition(history, "Progressing") == ("False", "Settled")


def test_an_image_that_is_no_longer_named_gives_way_to_the_operators_own() -> None:
    """Taking `spec.image` away again undoes what naming it did."""
    history = settled()
    images = []
    for image in ("example.com/wrong:1", None):
        change(history, image=image)
        history.settle()
        (made,) = history.cluster.api.of("StatefulSet")
        images.append({container["image"] for container in made["spec"]["template"]["spec"]["containers"]})
    assert images == [{"example.com/wrong:1"}, {SETTINGS.node_image}]


def test_an_image_that_is_taken_back_while_the_kafka_secret_is_away_goes_when_it_is_back() -> None:
    """No pod is made anew meanwhile, since it would not start, and what is to be undone is not forgotten."""
    history = settled(kafka={"bootstrapServers": "kafka:9092", "secretRef": {"name": "users"}})
    for image, digest in (("example.com/wrong:1", "known"), (None, ""), (None, "known")):
        history.operator.kafka_secret_digest = digest
        change(history, image=image)
        history.settle()
    (made,) = history.cluster.api.of("StatefulSet")
    images = {container["image"] for container in made["spec"]["template"]["spec"]["containers"]}
    assert images == {SETTINGS.node_image}


def test_a_lost_host_is_replaced() -> None:
    """A node whose host does not come back is made anew elsewhere, and its volume goes once others serve what was on it."""
    history = settled()
    lost = history.cluster.api.objects[Ref("Pod", "users-r1-1")]["spec"]["nodeName"]
    history.cluster.lose_host(lost)
    history.pass_time(15)
    history.settle()

    assert "NodeReplaced" in reasons(history)
    assert condition(history, "Available") == ("True", "Serving")
    assert status(history)["nodes"] == "3/3"
    assert lost not in {pod["spec"]["nodeName"] for pod in history.cluster.api.of("Pod")}


def test_the_only_copy_on_a_lost_host_waits_for_it_before_it_is_given_up() -> None:
    """Without standby copies the volume is deleted only when its pod can run nowhere."""
    history = settled(replicas=2, standbyReplicas=0)
    lost = history.cluster.api.objects[Ref("Pod", "users-r1-1")]["spec"]["nodeName"]
    claim = history.cluster.api.objects[Ref("PersistentVolumeClaim", "data-users-r1-1")]["metadata"]["uid"]
    history.cluster.lose_host(lost)
    history.go_on(6)
    assert (
        history.cluster.api.objects[Ref("PersistentVolumeClaim", "data-users-r1-1")]["metadata"]["uid"]
        == claim
    )
    history.settle()

    assert (
        history.cluster.api.objects[Ref("PersistentVolumeClaim", "data-users-r1-1")]["metadata"]["uid"]
        != claim
    )
    assert status(history)["nodes"] == "2/2"


def test_a_token_that_is_made_again_reaches_every_pod() -> None:
    """Pods that know an older token are made anew, one after the other."""
    history = settled()
    before_ = {pod["metadata"]["uid"] for pod in history.cluster.api.of("Pod")}
    history.pass_time(5)
    history.cluster.api.delete(Ref("Secret", "users-r1"))
    history.settle()

    assert not before_ & {pod["metadata"]["uid"] for pod in history.cluster.api.of("Pod")}


def test_what_is_suspended_keeps_its_volumes() -> None:
    """No pods, all volumes; and afterwards everything is as before, without a new copy."""
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


# --- vandals


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
def test_a_deleted_child_is_made_again(kind: str) -> None:
    """Every child comes back, and no pod but for the token's is made anew."""
    history = settled()
    placement = history.cluster.api.objects[Ref("ConfigMap", "users-r1")]["data"]["placement.json"]
    for ref in [ref for ref in history.cluster.api.objects if ref.kind == kind]:
        history.guarantees.service_was_touched = True
        if kind == "StatefulSet":
            for node in history.cluster.nodes.values():
                history.guarantees.note_destroyed(1, node.disk.replicas)
        history.cluster.api.delete(ref)
    history.settle()

    assert history.cluster.api.objects[Ref("ConfigMap", "users-r1")]["data"]["placement.json"] == placement
    assert condition(history, "Available") == ("True", "Serving")
    assert "DriftCorrected" in reasons(history)
    assert condition(history, "Progressing") == ("False", "Settled")


def test_the_active_config_map_comes_back_while_the_spec_is_another_one() -> None:
    """What a change that failed has left in the spec does not get into the revision that serves."""
    history = settled()
    change(history, transform={"sql": NEVER})
    history.settle()
    made = history.cluster.api.objects[Ref("ConfigMap", "users-r1")]["data"]
    history.cluster.api.delete(Ref("ConfigMap", "users-r1"))
    history.settle()

    assert history.cluster.api.objects[Ref("ConfigMap", "users-r1")]["data"] == made
    assert condition(history, "Degraded") == ("True", "RolloutFailed")


@pytest.mark.parametrize("phase", ["HydratingCandidate", "CuttingOver", "Retiring"])
def test_a_status_that_is_lost_during_a_change_is_made_again(phase: str) -> None:
    """The Service names the active revision; the change ends as it would have."""
    history = settled()
    change(history, topic="others")
    until_phase(history, phase)
    history.operator.resource["status"] = {}
    history.operator.touch()
    history.guarantees.status_was_touched = True
    history.settle()

    assert status(history)["active"]["revision"] == "r2"
    assert status(history)["phase"] == "Ready"
