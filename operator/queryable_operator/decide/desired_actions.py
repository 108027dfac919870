"""What is applied, told, rolled and taken away in one round, for the revisions that status was seen to name."""

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
from queryable_operator.decide.actions import Event, Plan, Tell
from queryable_operator.decide.drift import difference
from queryable_operator.decide.revision_records import (
    Makings,
    following,
    made_of,
    record_wanted,
    template_changes,
)
from queryable_operator.rollout import placements
from queryable_operator.rollout.live import MADE_OF, Live
from queryable_operator.rollout.placements import Situation
from queryable_operator.rollout.revisions import Course, Named, service_target
from queryable_operator.rollout.rolling import may_be_outdated, next_to_roll
from queryable_operator.spec import names
from queryable_operator.spec.observed import Manifest, Observed, Ref
from queryable_operator.spec.quantity import quantity
from queryable_operator.spec.resource import View
from queryable_operator.spec.settings import OperatorSettings

_OF_REVISION: Final = ("ConfigMap", "PodDisruptionBudget", "Secret", "Service", "StatefulSet")
_BEGINNING: Final = ("Pending", "Provisioning")


@dataclass(frozen=True, slots=True)
class Round:
    observed: Observed
    settings: OperatorSettings
    view: View
    course: Course
    """As it was observed."""

    following: Course
    """As it will be written."""

    lives: Mapping[int, Live]
    service: int | None
    """The revision that the Service is seen to be at."""

    def situation(self, number: int) -> Situation:
        """Of one revision. The epoch that status speaks of is the active one's."""
        epoch = (self.observed.resource.get("status") or {}).get("placementEpoch")
        is_active = self.course.active is not None and number == self.course.active.number
        return Situation(
            now=self.observed.now,
            cluster_domain=self.settings.cluster_domain,
            hosts=self.observed.hosts,
            epoch_told=epoch if is_active and isinstance(epoch, int) else 0,
        )

    def makings(self, number: int) -> Makings:
        return Makings(self.view, self.settings, self.situation(number), self.observed.kafka_secret_digest)

    @property
    def is_moving(self) -> bool:
        """Whether copies of the active revision are on their way."""
        live = self.live(self.course.active)
        if live.record is None or self.view.suspended:
            return False
        situation = self.situation(live.number)
        return not placements.is_settled(self.view, live, live.record.placement, situation)

    @property
    def is_rolling(self) -> bool:
        """Whether pods of the active revision are made anew, or are about to be."""
        live = self.live(self.course.active)
        return may_be_outdated(live) or template_changes(live, self.makings(live.number))

    @property
    def has_lost_record(self) -> bool:
        active = self.course.active
        if active is None or self.live(active).record is not None:
            return False
        return record_wanted(active, self.live(active), self.makings(active.number)) is None

    def live(self, named: Named | None) -> Live:
        number = named.number if named else 0
        return self.lives.get(number, Live(number))


def upkeep(round_: Round) -> Plan:
    whole = _joined(
        [_surroundings(round_), *(_revision(round_, named) for named in round_.course.kept), _front(round_)]
        + [_leaving(round_, live) for live in round_.lives.values()]
    )
    return _without(whole, round_.observed.taken)


def _surroundings(round_: Round) -> Plan:
    if round_.course.active is None:
        return Plan()
    view = round_.view
    return _of_view(round_, policies.service_account(view), policies.network_policy(view, round_.settings))


def _front(round_: Round) -> Plan:
    """The Service, where clients ask."""
    target = service_target(round_.course, round_.following)
    return Plan() if target is None else _of_view(round_, services.client(round_.view, target))


def _of_view(round_: Round, *objects: Manifest) -> Plan:
    """What is there from the first revision on, and is not there now, somebody deleted."""
    refs = [Ref(manifest["kind"], manifest["metadata"]["name"]) for manifest in objects]
    deleted = [ref for ref in refs if ref not in round_.observed.children]
    if round_.course.phase in _BEGINNING or round_.observed.taken.intersection(deleted):
        deleted = []
    return Plan(apply=objects, events=tuple(_was_deleted(ref) for ref in deleted))


def _revision(round_: Round, named: Named) -> Plan:
    live, view = round_.live(named), round_.view
    record = record_wanted(named, live, round_.makings(named.number))
    if record is None:  # what runs goes on running with what it has
        return Plan()
    number = named.number
    objects = [
        config_map(view, number, record),
        services.headless(view, number),
        policies.disruption_budget(view, number),
    ]
    token = Ref("Secret", names.child(view.name, number))
    missing = () if "Secret" in live.objects else (token,)
    made = Plan(
        apply=tuple(objects),
        expect_unchanged=frozenset({Ref("ConfigMap", names.child(view.name, number))}),
        secrets=missing,
        events=tuple(_put_back(round_, named, live)),
    )
    if live.record is None or missing:
        return made
    return _joined([made, _pods(round_, live, live.record)])


def _pods(round_: Round, live: Live, record: RevisionRecord) -> Plan:
    """Of a revision whose ConfigMap and token are there."""
    view, now = following(round_.view, record.spec), round_.observed.now
    replicas = placements.replicas(view, live, record.placement, now)
    there = live.objects.get("StatefulSet")
    made = stateful_set(view, live.number, record.template, replicas, there if _has_claims(there) else None)
    wanted = _marked(made, record)
    apply = Plan(apply=(wanted, *_larger_claims(view, live)), tell=tuple(_tell(view, live, record)))
    if view.suspended or round_.view.suspended:  # from the very round on in which it is asked for
        return apply
    return _joined(
        [
            apply,
            _rolled(round_, view, live, record, wanted),
            _replaced(round_, view, live, record),
            Plan(delete=tuple(placements.left_over(view, live, record.placement))),
        ]
    )


def _marked(stateful_set: Manifest, record: RevisionRecord) -> Manifest:
    metadata = stateful_set["metadata"]
    annotations = {**metadata["annotations"], MADE_OF: made_of(record).to_json()}
    return {**stateful_set, "metadata": {**metadata, "annotations": annotations}}


def _tell(view: View, live: Live, record: RevisionRecord) -> Iterator[Tell]:
    """The placement of the ConfigMap that was observed: a node that starts now learns no older one."""
    for ordinal, said in sorted(live.said.items()):
        placement = record.placement if said.seen.epoch < record.placement.epoch else None
        read = None if _reads_so(view, said.read) else view.raw["read"]
        if placement is not None or read is not None:
            yield Tell(live.number, ordinal, placement, read)


def _reads_so(view: View, read: Mapping[str, Any]) -> bool:
    try:
        return parse_read(read) == view.spec.read
    except SpecError:
        return False


def _larger_claims(view: View, live: Live) -> Iterator[Manifest]:
    if view.raw["storage"]["ephemeral"]:
        return
    size = quantity(view.raw["storage"]["size"])
    for ordinal, claim in sorted(live.claims.items()):
        there = _size(claim)
        if there is not None and there < size:
            yield larger_claim(view, live.number, ordinal)


def _has_claims(stateful_set: Manifest | None) -> bool:
    claims = (stateful_set or {}).get("spec", {}).get("volumeClaimTemplates")
    return bool(claims) and _size(claims[0]) is not None


def _size(claim: Manifest) -> Fraction | None:
    try:
        return quantity(claim["spec"]["resources"]["requests"]["storage"])
    except (KeyError, ValueError):
        return None


def _rolled(round_: Round, view: View, live: Live, record: RevisionRecord, wanted: Manifest) -> Plan:
    if round_.course.phase == "CuttingOver":
        return Plan()
    copies = placements.copies_of(view)
    pod = next_to_roll(live, record.placement, view.spec.replicas, copies, round_.observed.now)
    if pod is None or difference(wanted, live.objects["StatefulSet"]) is not None:
        return Plan()  # a template that somebody edited is none to make pods of
    return Plan(evict=(pod,))


def _replaced(round_: Round, view: View, live: Live, record: RevisionRecord) -> Plan:
    """Nodes that do not come back are made anew elsewhere."""
    situation = round_.situation(live.number)
    refs = tuple(placements.in_the_way(view, live, record.placement, situation))
    gone = {
        Ref("Pod", pod.name) for pod in live.pods.values() if placements.host_is_gone(view, pod, situation)
    }
    events = tuple(
        Event("Warning", "NodeReplaced", f"{ref.name} does not come back, and is made anew elsewhere.")
        for ref in refs
        if ref.kind == "Pod"
    )
    return Plan(
        delete=tuple(ref for ref in refs if ref not in gone),
        force_delete=tuple(ref for ref in refs if ref in gone),
        events=events,
    )


def _put_back(round_: Round, named: Named, live: Live) -> Iterator[Event]:
    """A child of a revision that has long been made, and is not there: somebody deleted it."""
    if named != round_.course.active or round_.course.phase in _BEGINNING:
        return
    for kind in _OF_REVISION:
        if kind not in live.objects:
            yield _was_deleted(Ref(kind, names.child(round_.view.name, named.number)))


def _was_deleted(ref: Ref) -> Event:
    return Event("Normal", "DriftCorrected", f"{ref.kind} {ref.name} was deleted, and is made again.")


def _leaving(round_: Round, live: Live) -> Plan:
    """A revision that nobody needs any more."""
    course, now = round_.course, round_.observed.now
    if live.number in [named.number for named in course.kept]:
        return Plan()
    if _is_retained(course, live):
        return Plan()
    previous = course.previous
    retired = previous.since if previous and previous.number == live.number else None
    if not deletion.may_go(live.number, retired, round_.service, now):
        return Plan()
    return Plan(
        delete=deletion.remains(round_.view.name, live),
        force_delete=tuple(deletion.stuck(live, round_.observed.hosts, now)),
    )


def _is_retained(course: Course, live: Live) -> bool:
    """Only volumes, of a revision that this resource never had: one of the same name left them for somebody to look after."""
    past = [entry.get("revision") for entry in course.history]
    if course.previous is not None:
        past.append(names.revision_text(course.previous.number))
    return not live.objects and not live.pods and names.revision_text(live.number) not in past


def _joined(plans: Iterable[Plan]) -> Plan:
    parts = list(plans)
    joined: dict[str, Any] = {}
    for field in fields(Plan):
        values = [getattr(part, field.name) for part in parts]
        if isinstance(values[0], tuple):
            joined[field.name] = tuple(item for value in values for item in value)
        elif isinstance(values[0], frozenset):
            joined[field.name] = frozenset().union(*values)
    return Plan(**joined)


def _without(whole: Plan, taken: frozenset[Ref]) -> Plan:
    """What somebody else has is left alone."""
    apply = tuple(m for m in whole.apply if Ref(m["kind"], m["metadata"]["name"]) not in taken)
    secrets = tuple(ref for ref in whole.secrets if ref not in taken)
    return replace(whole, apply=apply, secrets=secrets)
