"""Single stories in the simulated cluster: one thing happens, and what comes of it is named."""

from __future__ import annotations

import random
from typing import Any

import pytest

from queryable_operator.conditions import before
from queryable_operator.observed import Ref
from queryable_operator.status import service_of
from tests.operator.histories.cluster import Cluster, SimulatedHost, is_ready
from tests.operator.histories.guarantees import Guarantees
from tests.operator.histories.history import History, delete_resource, resource
from tests.operator.histories.nodes import NEVER
from tests.operator.histories.operator import SETTINGS, Operator


def settled(on: Cluster | None = None, **spec: Any) -> History:
    hosts = {f"host-{n}": SimulatedHost(f"zone-{n % 2}") for n in range(5)}
    cluster = on or Cluster(random.Random(7), hosts)
    operator = Operator(cluster, resource(**{"replicas": 3, "standbyReplicas": 1, **spec}))
    history = History(cluster.random, cluster, operator, Guarantees(cluster, operator))
    operator.watcher = history.guarantees.watch
    history.settle()
    operator.events.clear()
    return history


def change(history: History, **fields: Any) -> None:
    history.operator.resource["spec"].update(fields)
    history.changed()


def until_phase(history: History, phase: str) -> None:
    for _ in range(300):
        history.round()
        if history.operator.resource["status"]["phase"] == phase:
            return
        history.pass_time(1)
    raise AssertionError(f"it never came to {phase}: {history.operator.resource['status']}")


def status(history: History) -> Any:
    return history.operator.resource["status"]


def reasons(history: History) -> list[str]:
    return [event.reason for event in history.operator.events]


def condition(history: History, kind: str) -> tuple[str, str]:
    entry = before(status(history))[kind]
    return entry["status"], entry["reason"]


def is_gone_after(history: History, seconds: int) -> bool:
    for _ in range(0, seconds, 4):
        history.pass_time(4)
        history.round()
    return history.operator.gone


def pods_ready(history: History) -> set[str]:
    return {pod["metadata"]["name"] for pod in history.cluster.api.of("Pod") if is_ready(pod)}


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
        if disk.placement and disk.placement.application_id.endswith("r2"):
            disk.copies = dict.fromkeys(disk.copies, 0.0)
    until_phase(history, "HydratingCandidate")
    history.round()

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
        history.round()
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
        history.round()
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
                history.guarantees.note_destroyed(1, node.disk.copies)
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


# --- the end


def test_kafka_that_is_away_holds_a_deletion_up_for_five_minutes() -> None:
    """Then an event says what may be left, and the resource goes."""
    history = settled()
    history.cluster.kafka_is_there = False
    delete_resource(history)
    assert is_gone_after(history, 100) is False
    assert condition(history, "Degraded") == ("True", "CleanupFailed")
    assert is_gone_after(history, 400)
    assert "CleanupFailed" in reasons(history)
    assert not history.cluster.api.objects


def test_a_resource_of_which_nothing_was_ever_made_waits_for_no_kafka() -> None:
    """As when its bootstrap servers are wrong, and somebody begins anew."""
    cluster = Cluster(random.Random(7), {"host-0": SimulatedHost("zone-0")})
    cluster.kafka_is_there = False
    history = settled(cluster)
    assert status(history)["phase"] == "Pending"
    delete_resource(history)
    history.round()
    assert history.operator.gone
    assert reasons(history) == []


@pytest.mark.parametrize("forgotten", [False, True], ids=["with its status", "and its status"])
def test_kafka_is_cleaned_up_though_everything_else_was_taken_away(forgotten: bool) -> None:
    """Somebody has deleted all children by hand before the resource."""
    history = settled()
    history.cluster.kafka_is_there = False
    history.cluster.api.objects.clear()
    if forgotten:
        history.operator.resource["status"] = {}
    history.guarantees.status_was_touched = True
    delete_resource(history)
    assert is_gone_after(history, 200) is False


def test_what_is_retained_stays() -> None:
    """With the policy Retain volumes and groups are left where they are."""
    history = settled(deletionPolicy="Retain")
    delete_resource(history)

    assert is_gone_after(history, 200)
    assert {ref.kind for ref in history.cluster.api.objects} == {"PersistentVolumeClaim"}
    assert history.cluster.groups


@pytest.mark.parametrize(
    "meanwhile", [{}, {"paused": True}, {"replicas": 0}], ids=["well", "paused", "wrong"]
)
def test_volumes_stay_though_the_policy_became_retain_just_before(meanwhile: dict[str, Any]) -> None:
    """Nothing was made of it yet when the resource is deleted, also because it was paused, or its spec was wrong."""
    history = settled()
    claims = {ref for ref in history.cluster.api.objects if ref.kind == "PersistentVolumeClaim"}
    change(history, **meanwhile)
    history.settle()
    change(history, deletionPolicy="Retain")
    delete_resource(history)

    assert is_gone_after(history, 200)
    assert set(history.cluster.api.objects) == claims


def test_what_was_retained_outlives_a_new_resource_of_the_name() -> None:
    """It has another revision number, and leaves the volumes of the one before alone, also when it changes."""
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


def test_a_deletion_does_not_wait_for_pods_on_a_lost_host() -> None:
    """Nobody is left to say that they have ended."""
    history = settled()
    history.cluster.lose_host(history.cluster.api.objects[Ref("Pod", "users-r1-0")]["spec"]["nodeName"])
    history.pass_time(15)
    delete_resource(history)

    assert is_gone_after(history, 200)
