"""Decide a revision's desired placement and number of pods, and find lost nodes and the objects that block their replacement.

The placement controller takes the steps. This file decides its input and tells apart nodes that must give up their replicas,
nodes that are lost and nodes that are not there yet. The placement in the ConfigMap is valid unless a node follows a later one:
then an old ConfigMap was restored, and the nodes' placement is valid.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from queryable_app.placement.assignment import DesiredPlacement, Placement, initial_placement, settled
from queryable_app.placement.controller import NodeObservation, next_step
from queryable_operator.rollout.live_revision import LiveRevision
from queryable_operator.rollout.pod import Pod
from queryable_operator.spec import names
from queryable_operator.spec.observed import Host, Ref
from queryable_operator.spec.pods import PodIndex, PodLayout
from queryable_operator.spec.resource import View

SILENT_AFTER_SECONDS: Final = 10.0  # a node without a report for so long is silent


@dataclass(frozen=True, slots=True)
class PlacementInputs:
    """Hold the inputs of a placement beside the revision itself."""

    now: float
    cluster_domain: str
    hosts: Mapping[str, Host] | None
    reported_epoch: int = 0
    """The latest epoch in status."""


def new_placement(
    view: View, number: int, application_id: str, partitions: int, cluster_domain: str, layout: PodLayout
) -> Placement:
    addresses = _addresses(view, number, cluster_domain, layout)
    domains = _domains(view, layout, {})
    return initial_placement(application_id, partitions, addresses, replication_factor(view), domains)


def latest_placement(
    live: LiveRevision, application_id: str, partitions: int, record: Placement | None
) -> Placement | None:
    """Return the latest known placement: the ConfigMap's, or one that nodes follow."""
    known = [record] if record is not None else []
    for node_status in live.node_statuses.values():
        there = node_status.placement
        if there and there.application_id == application_id and there.partitions == partitions:
            known.append(there)
    return max(known, key=lambda placement: placement.epoch, default=None)


def next_placement(
    view: View, live: LiveRevision, placement: Placement, placement_inputs: PlacementInputs
) -> Placement:
    """Return the next placement, or the same one if no step is possible now."""
    if view.suspended or _may_be_outdated(live, placement, placement_inputs):
        return placement
    return next_step(
        placement,
        wanted_placement(view, live, placement, placement_inputs),
        node_observations(live),
        placement_inputs.now,
    )


def is_settled(
    view: View, live: LiveRevision, placement: Placement, placement_inputs: PlacementInputs
) -> bool:
    return settled(placement, wanted_placement(view, live, placement, placement_inputs))


def wanted_placement(
    view: View, live: LiveRevision, placement: Placement, placement_inputs: PlacementInputs
) -> DesiredPlacement:
    layout, reporting = live.layout, _reporting_nodes(live, placement_inputs.now)
    lost = set(lost_pods(view, live, placement_inputs))
    for pod in _pods(view):
        nodes = set(layout.nodes_of(pod))
        if not nodes <= reporting and not any(placement.assigned_to(ordinal) for ordinal in nodes):
            lost.add(pod)  # it is not there yet
    able = len(set(_pods(view)) - lost)
    return DesiredPlacement(
        _addresses(view, live.number, placement_inputs.cluster_domain, layout),
        max(1, min(replication_factor(view), able)),  # two replicas in one pod would be lost as one
        _domains(view, layout, domains_seen(live, placement_inputs.hosts)),
        layout.nodes_in(lost),
    )


def domains_seen(live: LiveRevision, hosts: Mapping[str, Host] | None) -> Mapping[PodIndex, str]:
    """Return the failure domain of each pod: its zone if there are several zones, else its host. A pod without a host keeps
    its last one."""
    zones = {host.zone for host in (hosts or {}).values() if host.zone}
    domains = dict(live.record.domains) if live.record else {}
    for index, pod in live.pods.items():
        if pod.host:
            host = (hosts or {}).get(pod.host)
            domains[index] = host.zone if len(zones) > 1 and host and host.zone else pod.host
    return domains


def replicas(view: View, live: LiveRevision, placement: Placement, now: float) -> int:
    """Return the desired number of pods. A pod that left the placement stays until every node follows that placement."""
    if view.suspended:
        return 0
    enough = max(live.layout.pods_with(len(placement.addresses)), view.spec.replicas)
    return enough if is_acknowledged(live, placement, now) else max(enough, live.replicas)


def is_acknowledged(live: LiveRevision, placement: Placement, now: float) -> bool:
    return not any(
        node_status.seen.epoch < placement.epoch and now - node_status.seen.at < SILENT_AFTER_SECONDS
        for node_status in live.node_statuses.values()
    )


def lost_pods(view: View, live: LiveRevision, placement_inputs: PlacementInputs) -> frozenset[PodIndex]:
    """Return the pods that cannot come back where they are: their host is lost, or no host can run them with their volume."""
    return frozenset(
        index
        for index, pod in live.pods.items()
        if not pod.ready
        and placement_inputs.now - pod.changed >= view.replace_after_seconds
        and (pod.volume_is_unreachable or host_is_lost(view, pod, placement_inputs))
    )


def host_is_lost(view: View, pod: Pod, placement_inputs: PlacementInputs) -> bool:
    if (
        placement_inputs.hosts is None
    ):  # hosts are unknown, but one that does not end its pods in time is lost
        return (
            pod.termination_deadline is not None
            and placement_inputs.now - pod.termination_deadline >= view.replace_after_seconds
        )
    host = placement_inputs.hosts.get(pod.host) if pod.host else None
    return pod.host is not None and (host is None or not host.ready)


def blocking_objects(
    view: View, live: LiveRevision, placement: Placement, placement_inputs: PlacementInputs
) -> Iterator[Ref]:
    """Yield the objects that keep the StatefulSet from replacing lost pods elsewhere.

    Other nodes take over the lost nodes' partitions first. If none can, the volume stays, since it may come back with the data;
    a volume that no host can reach does not.
    """
    lost = lost_pods(view, live, placement_inputs)
    lost_nodes = live.layout.nodes_in(lost)
    for index in sorted(lost):
        nodes = set(live.layout.nodes_of(index))
        listed = [set(serving) for serving in placement.serving if nodes.intersection(serving)]
        if not all(serving <= lost_nodes for serving in listed):
            continue
        pod = live.pods[index]
        if index in live.claims and (not listed or pod.volume_is_unreachable):
            yield Ref("PersistentVolumeClaim", names.volume_claim(view.name, live.number, index))
        yield Ref("Pod", pod.name)


def orphaned_claims(
    view: View, live: LiveRevision, placement: Placement, placement_inputs: PlacementInputs
) -> Iterator[Ref]:
    """Yield the volume claims of pods that the revision no longer has."""
    if _may_be_outdated(live, placement, placement_inputs):
        return
    pods = max(live.layout.pods_with(len(placement.addresses)), view.spec.replicas, live.replicas)
    for index in sorted(live.claims):
        if index >= pods and index not in live.pods:
            yield Ref("PersistentVolumeClaim", names.volume_claim(view.name, live.number, index))


def node_observations(live: LiveRevision) -> Mapping[int, NodeObservation]:
    return {ordinal: node_status.seen for ordinal, node_status in live.node_statuses.items()}


def _may_be_outdated(live: LiveRevision, placement: Placement, placement_inputs: PlacementInputs) -> bool:
    """Return whether the placement may be outdated: it was rebuilt from nothing, and not every node has reported."""
    return placement.epoch < placement_inputs.reported_epoch and not all_nodes_reported(
        live, placement_inputs.now
    )


def all_nodes_reported(live: LiveRevision, now: float) -> bool:
    """Return whether every node has reported. Without a pod none has: a user may have scaled the StatefulSet to nothing."""
    return bool(live.pods) and live.nodes <= _reporting_nodes(live, now) and len(live.pods) >= live.replicas


def _reporting_nodes(live: LiveRevision, now: float) -> set[int]:
    return {
        ordinal
        for ordinal, node_status in live.node_statuses.items()
        if now - node_status.seen.at < SILENT_AFTER_SECONDS
    }


def _pods(view: View) -> list[PodIndex]:
    """Return the pods that the spec asks for."""
    return [PodIndex(index) for index in range(view.spec.replicas)]


def _addresses(view: View, number: int, cluster_domain: str, layout: PodLayout) -> tuple[str, ...]:
    name, namespace = view.name, view.namespace
    return tuple(
        names.advertised_url(
            namespace, name, number, pod, cluster_domain, layout.port_of(ordinal), layout.scheme
        )
        for pod in _pods(view)
        for ordinal in layout.nodes_of(pod)
    )


def replication_factor(view: View) -> int:
    return min(view.spec.replication_factor, view.spec.replicas)


def _domains(view: View, layout: PodLayout, seen: Mapping[PodIndex, str]) -> tuple[str, ...]:
    """Return each node's failure domain: its pod, inside the pod's zone or host."""
    return tuple(f"{seen.get(pod, f'node {pod}')}/{pod}" for pod in _pods(view) for _ in layout.nodes_of(pod))
