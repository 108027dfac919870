"""Decide the actions of one pass for the revisions in the observed status: apply, update nodes, restart pods, delete."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import Any, Final

from queryable_app.config.topic_spec import SpecError, parse_read
from queryable_operator.build import policies, services
from queryable_operator.build.settings_map import RevisionRecord, config_map
from queryable_operator.build.workload import larger_claim, stateful_set
from queryable_operator.decide import deletion
from queryable_operator.decide.actions import CertificateWork, Event, NodeUpdate, Plan
from queryable_operator.decide.drift import difference
from queryable_operator.decide.rekey_job import apply_rekey_job, leftover_topic, startable_pods
from queryable_operator.decide.revision_records import (
    TemplateInputs,
    build_inputs,
    desired_record,
    template_changes,
    view_of_revision,
)
from queryable_operator.rollout import placements
from queryable_operator.rollout.live_revision import BUILD_INPUTS_ANNOTATION, LiveRevision
from queryable_operator.rollout.placements import PlacementInputs
from queryable_operator.rollout.revisions import service_target
from queryable_operator.rollout.rolling import may_have_outdated_pods, next_to_roll
from queryable_operator.rollout.rollout_state import RevisionReference, RolloutState
from queryable_operator.spec import names
from queryable_operator.spec.certificates import certificate_step
from queryable_operator.spec.observed import Manifest, Observed, Ref
from queryable_operator.spec.quantity import quantity
from queryable_operator.spec.resource import View
from queryable_operator.spec.settings import OperatorSettings

_REVISION_KINDS: Final = ("ConfigMap", "PodDisruptionBudget", "Secret", "Service", "StatefulSet")
_FIRST_PHASES: Final = ("Pending", "Provisioning")


@dataclass(frozen=True, slots=True)
class ReconcilePass:
    observed: Observed
    settings: OperatorSettings
    view: View
    state: RolloutState
    """As observed."""

    following: RolloutState
    """As it will be written."""

    live_revisions: Mapping[int, LiveRevision]
    service: int | None
    """The revision that the live Service selects."""

    def placement_inputs(self, number: int) -> PlacementInputs:
        """Return the placement inputs of a revision. The epoch in status is the active revision's."""
        epoch = (self.observed.resource.get("status") or {}).get("placementEpoch")
        is_active = self.state.active is not None and number == self.state.active.number
        return PlacementInputs(
            now=self.observed.now,
            cluster_domain=self.settings.cluster_domain,
            hosts=self.observed.hosts,
            reported_epoch=epoch if is_active and isinstance(epoch, int) else 0,
        )

    def template_inputs(self, number: int) -> TemplateInputs:
        return TemplateInputs(
            self.view, self.settings, self.placement_inputs(number), self.observed.kafka_secret_digest
        )

    @property
    def is_moving(self) -> bool:
        """Return whether replicas of the active revision are moving."""
        live = self.live(self.state.active)
        if live.record is None or self.view.suspended:
            return False
        placement_inputs = self.placement_inputs(live.number)
        return not placements.is_settled(self.view, live, live.record.placement, placement_inputs)

    @property
    def is_rolling(self) -> bool:
        """Return whether pods of the active revision are being recreated, or are about to be."""
        live = self.live(self.state.active)
        return may_have_outdated_pods(live) or template_changes(live, self.template_inputs(live.number))

    @property
    def has_lost_record(self) -> bool:
        active = self.state.active
        if active is None or self.live(active).record is not None:
            return False
        return desired_record(active, self.live(active), self.template_inputs(active.number)) is None

    def live(self, reference: RevisionReference | None) -> LiveRevision:
        number = reference.number if reference else 0
        return self.live_revisions.get(number, LiveRevision(number))


def desired_actions(pass_: ReconcilePass) -> Plan:
    whole = _merge(
        [
            _view_objects(pass_),
            *(_apply_revision(pass_, reference) for reference in pass_.state.retained),
            _client_service(pass_),
        ]
        + [_remove_revision(pass_, live) for live in pass_.live_revisions.values()]
    )
    whole = replace(whole, certificate=_certificate_work(pass_))
    return _without_conflicts(whole, pass_.observed.name_conflicts)


def _certificate_work(pass_: ReconcilePass) -> CertificateWork | None:
    """Return what the certificate between nodes needs, if nodes speak TLS, or are about to."""
    view, revisions = pass_.view, pass_.live_revisions.values()
    if view.spec.tls is None and not any(live.layout.tls for live in revisions):
        return None
    if Ref("Secret", names.node_certificate(view.name)) in pass_.observed.name_conflicts:
        return None
    step = certificate_step(pass_.observed.node_certificate, pass_.observed.now)
    if step is None:
        return None
    hosts = names.service_hosts(view.namespace, view.name, pass_.settings.cluster_domain)
    return CertificateWork(step, (names.node_tls_name(view.namespace, view.name), *hosts))


def _view_objects(pass_: ReconcilePass) -> Plan:
    if pass_.state.active is None:
        return Plan()
    view, layouts = pass_.view, [live.layout for live in pass_.live_revisions.values()]
    network_policy = policies.network_policy(view, pass_.settings, layouts)
    return _apply_for_view(pass_, policies.service_account(view), network_policy)


def _client_service(pass_: ReconcilePass) -> Plan:
    """Apply the Service that receives client requests."""
    target = service_target(pass_.state, pass_.following)
    return Plan() if target is None else _apply_for_view(pass_, services.client(pass_.view, target))


def _apply_for_view(pass_: ReconcilePass, *objects: Manifest) -> Plan:
    """Apply objects that the view has from its first revision on. A missing one was deleted by a user."""
    refs = [Ref(manifest["kind"], manifest["metadata"]["name"]) for manifest in objects]
    deleted = [ref for ref in refs if ref not in pass_.observed.children]
    if pass_.state.phase in _FIRST_PHASES or pass_.observed.name_conflicts.intersection(deleted):
        deleted = []
    return Plan(apply=objects, events=tuple(_recreation_event(ref) for ref in deleted))


def _apply_revision(pass_: ReconcilePass, reference: RevisionReference) -> Plan:
    live, view = pass_.live(reference), pass_.view
    record = desired_record(reference, live, pass_.template_inputs(reference.number))
    if record is None:  # running pods keep what they have
        return Plan()
    number = reference.number
    objects = [
        config_map(view, number, record),
        services.headless(view, number, record.layout),
        policies.disruption_budget(view, number),
    ]
    token = Ref("Secret", names.child(view.name, number))
    missing = () if "Secret" in live.objects else (token,)
    made = Plan(
        apply=tuple(objects),
        expect_unchanged=frozenset({Ref("ConfigMap", names.child(view.name, number))}),
        token_secrets=missing,
        events=tuple(_recreation_events(pass_, reference, live)),
    )
    if live.record is None or missing or (record.layout.tls and pass_.observed.node_certificate is None):
        return made
    never_started = reference == pass_.state.candidate or pass_.state.phase in _FIRST_PHASES
    if never_started and (left := leftover_topic(pass_.observed, view, live, live.record)) is not None:
        return _merge([made, Plan(delete_topics=(left,))])
    return _merge([made, _apply_pods(pass_, live, live.record)])


def _apply_pods(pass_: ReconcilePass, live: LiveRevision, record: RevisionRecord) -> Plan:
    """Apply the pods of a revision whose ConfigMap, token and certificate exist."""
    view, now = view_of_revision(pass_.view, record.spec), pass_.observed.now
    replicas = startable_pods(live, record, placements.replicas(view, live, record.placement, now))
    there = live.objects.get("StatefulSet")
    made = stateful_set(view, live.number, record.template, replicas, there if _has_claims(there) else None)
    wanted = _with_build_inputs(made, record)
    nodes = Plan(
        apply=(wanted, *_larger_claims(view, live)), node_updates=tuple(_node_updates(view, live, record))
    )
    inputs = pass_.placement_inputs(live.number)
    apply = _merge([nodes, apply_rekey_job(pass_.observed, view, live, record, pass_.settings)])
    if view.suspended or pass_.view.suspended:  # from the first pass after the change on
        return apply
    return _merge(
        [
            apply,
            _restart_next_pod(pass_, view, live, record, wanted),
            _replace_lost_pods(pass_, view, live, record),
            Plan(delete=tuple(placements.orphaned_claims(view, live, record.placement, inputs))),
        ]
    )


def _with_build_inputs(stateful_set: Manifest, record: RevisionRecord) -> Manifest:
    metadata = stateful_set["metadata"]
    annotations = {**metadata["annotations"], BUILD_INPUTS_ANNOTATION: build_inputs(record).to_json()}
    return {**stateful_set, "metadata": {**metadata, "annotations": annotations}}


def _node_updates(view: View, live: LiveRevision, record: RevisionRecord) -> Iterator[NodeUpdate]:
    """Yield updates for nodes that are behind the observed ConfigMap. A pod that starts now reads at least that placement."""
    for ordinal, node_status in sorted(live.node_statuses.items()):
        placement = record.placement if node_status.seen.epoch < record.placement.epoch else None
        read = None if _has_read_settings(view, node_status.read) else view.raw["read"]
        if placement is not None or read is not None:
            yield NodeUpdate(live.number, ordinal, placement, read)


def _has_read_settings(view: View, read: Mapping[str, Any]) -> bool:
    try:
        return parse_read(read) == view.spec.read
    except SpecError:
        return False


def _larger_claims(view: View, live: LiveRevision) -> Iterator[Manifest]:
    if view.raw["storage"]["ephemeral"]:
        return
    size = quantity(view.raw["storage"]["size"])
    for index, claim in sorted(live.claims.items()):
        there = _size(claim)
        if there is not None and there < size:
            yield larger_claim(view, live.number, index)


def _has_claims(stateful_set: Manifest | None) -> bool:
    claims = (stateful_set or {}).get("spec", {}).get("volumeClaimTemplates")
    return bool(claims) and _size(claims[0]) is not None


def _size(claim: Manifest) -> Fraction | None:
    try:
        return quantity(claim["spec"]["resources"]["requests"]["storage"])
    except (KeyError, ValueError):
        return None


def _restart_next_pod(
    pass_: ReconcilePass, view: View, live: LiveRevision, record: RevisionRecord, wanted: Manifest
) -> Plan:
    # A pod that starts could not use the Secret; those that run keep what they have.
    if pass_.state.phase == "CuttingOver" or pass_.observed.secret_problem is not None:
        return Plan()
    replicas = placements.replication_factor(view)
    pod = next_to_roll(live, record.placement, view.spec.replicas, replicas, pass_.observed.now)
    if pod is None or difference(wanted, live.objects["StatefulSet"]) is not None:
        return Plan()  # never create pods from a template that a user edited
    return Plan(evict=(pod,))


def _replace_lost_pods(pass_: ReconcilePass, view: View, live: LiveRevision, record: RevisionRecord) -> Plan:
    """Delete what blocks the replacement of lost pods."""
    placement_inputs = pass_.placement_inputs(live.number)
    refs = tuple(placements.blocking_objects(view, live, record.placement, placement_inputs))
    gone = {
        Ref("Pod", pod.name)
        for pod in live.pods.values()
        if placements.host_is_lost(view, pod, placement_inputs)
    }
    events = tuple(
        Event("Warning", "NodeReplaced", f"{ref.name} is lost and is replaced on another host.")
        for ref in refs
        if ref.kind == "Pod"
    )
    return Plan(
        delete=tuple(ref for ref in refs if ref not in gone),
        force_delete=tuple(ref for ref in refs if ref in gone),
        events=events,
    )


def _recreation_events(
    pass_: ReconcilePass, reference: RevisionReference, live: LiveRevision
) -> Iterator[Event]:
    """Yield an event for each missing child of an established revision: a user deleted it."""
    if reference != pass_.state.active or pass_.state.phase in _FIRST_PHASES:
        return
    for kind in _REVISION_KINDS:
        if kind not in live.objects:
            yield _recreation_event(Ref(kind, names.child(pass_.view.name, reference.number)))
    if live.is_rekeyed and live.rekey_job.stateful_set is None:
        yield _recreation_event(Ref("StatefulSet", names.rekey_job(pass_.view.name, reference.number)))


def _recreation_event(ref: Ref) -> Event:
    return Event("Normal", "DriftCorrected", f"{ref.kind} {ref.name} was deleted and is recreated.")


def _remove_revision(pass_: ReconcilePass, live: LiveRevision) -> Plan:
    """Remove a revision that is no longer needed."""
    state, now = pass_.state, pass_.observed.now
    if live.number in [reference.number for reference in state.retained]:
        return Plan()
    if _is_retained(state, live):
        return Plan()
    previous = state.previous
    retired = previous.since if previous and previous.number == live.number else None
    if not deletion.is_removable(live.number, retired, pass_.service, now):
        return Plan()
    return deletion.plan_removal(pass_.observed, pass_.view, live, retired)


def _is_retained(state: RolloutState, live: LiveRevision) -> bool:
    """Return whether only volumes are left, of a revision that this resource never had: an earlier resource with the same name
    retained them."""
    past = [entry.get("revision") for entry in state.history]
    if state.previous is not None:
        past.append(names.revision_text(state.previous.number))
    return not live.objects and not live.all_pods and names.revision_text(live.number) not in past


def _merge(plans: Iterable[Plan]) -> Plan:
    parts = list(plans)
    joined: dict[str, Any] = {}
    for field in fields(Plan):
        values = [getattr(part, field.name) for part in parts]
        if isinstance(values[0], tuple):
            joined[field.name] = tuple(item for value in values for item in value)
        elif isinstance(values[0], frozenset):
            joined[field.name] = frozenset().union(*values)
    return Plan(**joined)


def _without_conflicts(whole: Plan, name_conflicts: frozenset[Ref]) -> Plan:
    """Leave out objects whose name another owner's object uses."""
    apply = tuple(m for m in whole.apply if Ref(m["kind"], m["metadata"]["name"]) not in name_conflicts)
    secrets = tuple(ref for ref in whole.token_secrets if ref not in name_conflicts)
    return replace(whole, apply=apply, token_secrets=secrets)
