"""Inject faults into a view: edits by users, and failures of machines."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from queryable_operator.spec import names
from queryable_operator.spec.observed import Ref
from tests.operator.histories.api import LiveRevision
from tests.operator.histories.nodes import NEVER, REFUSED

if TYPE_CHECKING:
    from tests.operator.histories.history import History


# --- edits by users


def change_topic(h: History) -> None:
    h.operator.resource["spec"]["topic"] = h.random.choice(("users", "others", "third"))
    h.changed()


def change_sql_to_one_that_never_hydrates(h: History) -> None:
    spec = h.operator.resource["spec"]
    if spec.pop("transform", None) is None:
        spec["transform"] = {"sql": h.random.choice((NEVER, REFUSED))}
        spec["rollout"]["onFailure"] = h.random.choice(("DeleteCandidate", "KeepCandidate"))
    h.changed()


def scale(h: History) -> None:
    spec = h.operator.resource["spec"]
    spec["replicas"] = h.random.choice((1, 2, 3, 4))
    spec["standbyReplicas"] = min(h.random.choice((0, 0, 1, 2)), spec["replicas"] - 1)
    h.changed()


def change_pods(h: History) -> None:
    h.operator.resource["spec"]["podTemplate"] = {"labels": {"team": h.random.choice("abc")}}
    h.changed()


def change_workers(h: History) -> None:
    spec = h.operator.resource["spec"]
    spec["serve"] = h.random.choice(({}, {"workers": 1}, {"workers": 2}, {"workers": 3}))
    h.changed()


def change_tls(h: History) -> None:
    spec = h.operator.resource["spec"]
    if spec.pop("tls", None) is None:
        name = h.random.choice(("", "one", "other"))
        spec["tls"] = {"secretRef": {"name": name}} if name else {}
    h.changed()


def change_cpus(h: History) -> None:
    """Change the CPUs, from which the number of workers of the next revision follows."""
    cpu = h.random.choice(("500m", "1", "2", "3"))
    h.operator.resource["spec"]["podTemplate"] = {"resources": {"serve": {"requests": {"cpu": cpu}}}}
    h.changed()


def change_reads(h: History) -> None:
    h.operator.resource["spec"]["read"]["maxConcurrent"] = h.random.choice((1, 2, 3))
    h.changed()


def grow_volumes(h: History) -> None:
    size = int(h.operator.resource["spec"]["storage"]["size"].removesuffix("Gi"))
    h.operator.resource["spec"]["storage"]["size"] = f"{size + 1}Gi"
    h.changed()


def make_spec_invalid(h: History) -> None:
    spec = h.operator.resource["spec"]
    spec["standbyReplicas"] = spec["replicas"] if spec["standbyReplicas"] < spec["replicas"] else 0
    h.changed()


def pause(h: History) -> None:
    spec = h.operator.resource["spec"]
    spec["paused"] = not spec["paused"]
    h.guarantees.unpaused_since = h.cluster.now
    h.changed()


def suspend(h: History) -> None:
    spec = h.operator.resource["spec"]
    spec["suspended"] = not spec["suspended"]
    h.changed()


def alert_only(h: History) -> None:
    h.operator.resource["spec"]["onPartitionsChanged"] = h.random.choice(("Redeploy", "Alert"))
    h.changed()


def delete_child(h: History) -> None:
    kinds = ("ConfigMap", "StatefulSet", "Service", "PodDisruptionBudget", "Secret", "NetworkPolicy")
    if ref := h.a_child(*kinds):
        if ref == Ref("Service", "users"):
            h.guarantees.service_was_touched = True
        if ref.kind == "StatefulSet":
            _note_volumes(h, ref.name)
        h.story.append(f"   {ref}")
        h.cluster.api.delete(ref)


def edit_config_map(h: History) -> None:
    if ref := h.a_child("ConfigMap"):
        live = h.cluster.api.objects[ref]
        h.random.choice((_reverse_placement, _write_malformed_data, _remove_data, _replace_spec))(live)
        h.cluster.api.touch(live)


def edit_service(h: History) -> None:
    if live := h.cluster.api.get("Service", "users"):
        live["spec"]["selector"][names.REVISION_LABEL] = h.random.choice(("r1", "r2", "r99", "rubbish"))
        h.guarantees.service_was_touched = True
        h.cluster.api.touch(live)


def edit_stateful_set(h: History) -> None:
    if ref := h.a_child("StatefulSet"):
        spec = h.cluster.api.objects[ref]["spec"]
        if h.random.random() < 0.5:
            spec["replicas"] = h.random.randrange(5)
        else:
            spec["template"]["metadata"]["labels"]["edited"] = "yes"
        h.cluster.api.touch(h.cluster.api.objects[ref], new_generation=True)


def lose_status(h: History) -> None:
    status = h.operator.resource.get("status") or {}
    h.guarantees.status_was_touched = True
    h.guarantees.failed = None
    if h.random.random() < 0.5:
        h.operator.resource["status"] = {}
    else:
        status.pop(
            h.random.choice(("active", "phase", "candidate", "previous", "history", "conditions")), None
        )
    h.operator.touch()


def delete_pod(h: History) -> None:
    if ref := h.a_child("Pod"):
        h.cluster.api.delete(ref)


def delete_volume_and_pod(h: History) -> None:
    if ref := h.a_child("PersistentVolumeClaim"):
        h.destroy(h.cluster.api.objects[ref]["metadata"]["uid"])
        h.cluster.api.delete(ref)
        h.cluster.api.delete(Ref("Pod", ref.name.removeprefix("data-")))


# --- failures of machines


def kill_node(h: History) -> None:
    if h.cluster.nodes:
        h.cluster.kill(h.random.choice(list(h.cluster.nodes)))


def hang_node(h: History) -> None:
    if h.cluster.nodes:
        node = h.random.choice(list(h.cluster.nodes.values()))
        node.answers = not node.answers


def fill_disk(h: History) -> None:
    if h.cluster.nodes:
        node = h.random.choice(list(h.cluster.nodes.values()))
        node.full = not node.full


def lose_host(h: History) -> None:
    up = [name for name, host in h.cluster.hosts.items() if host.up]
    if len(up) > 3:
        h.cluster.lose_host(h.random.choice(up))


def recover_host(h: History) -> None:
    h.cluster.recover_host(h.random.choice(list(h.cluster.hosts)))


def lose_kafka(h: History) -> None:
    h.cluster.kafka_is_there = not h.cluster.kafka_is_there


def change_partitions(h: History) -> None:
    h.cluster.partitions = h.random.choice((None, 3, 4, 5, 5))


def add_lag(h: History) -> None:
    h.cluster.lag = h.random.choice((0, 0, 3))


def _note_volumes(h: History, name: str) -> None:
    """Destroy the volumes of a deleted StatefulSet."""
    for claim in h.cluster.api.of("PersistentVolumeClaim"):
        if claim["metadata"]["name"].startswith(f"data-{name}-"):
            h.destroy(claim["metadata"]["uid"])


def _reverse_placement(live: LiveRevision) -> None:
    text = live.get("data", {}).get("placement.json")
    try:
        placement = json.loads(text)
    except (TypeError, ValueError):
        return
    placement["serving"] = placement["serving"][::-1]
    live["data"]["placement.json"] = json.dumps(placement)


def _replace_spec(live: LiveRevision) -> None:
    live.setdefault("data", {})["spec.json"] = '{"topic": "edited"}'


def _write_malformed_data(live: LiveRevision) -> None:
    live["data"] = {"placement.json": "[", "spec.json": "rubbish"}


def _remove_data(live: LiveRevision) -> None:
    live.pop("data", None)


FAULTS: tuple[Callable[[History], None], ...] = (
    change_topic,
    change_topic,
    change_sql_to_one_that_never_hydrates,
    scale,
    scale,
    change_pods,
    change_reads,
    grow_volumes,
    make_spec_invalid,
    pause,
    suspend,
    alert_only,
    delete_child,
    delete_child,
    edit_config_map,
    edit_service,
    edit_stateful_set,
    lose_status,
    delete_pod,
    delete_volume_and_pod,
    kill_node,
    kill_node,
    hang_node,
    fill_disk,
    lose_host,
    recover_host,
    lose_kafka,
    change_partitions,
    add_lag,
)

WORKER_FAULTS: tuple[Callable[[History], None], ...] = (*FAULTS, *(change_workers, change_cpus) * 3)
"""The faults of views whose pods have several workers."""

TLS_FAULTS: tuple[Callable[[History], None], ...] = (*FAULTS, change_tls, change_tls)
"""The faults of views that sometimes speak TLS."""
