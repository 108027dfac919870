"""What is to be done for one resource, from what was observed of it. Level-triggered: no memory, and no event is waited for.

Strategy: `revisions` says where a change stands and what its next step is; the step is written into status and into nothing
else. All that is applied, told and deleted (`upkeep`) follows from the status that was observed, and from what was seen
of it: a ConfigMap before its StatefulSet, a placement in its ConfigMap before nodes hear of it, a Service that is turned
before status says so, that status before the old revision goes. Any part of a plan may be all that happens of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from queryable_app.config.topic_spec import SpecError
from queryable_operator.build.settings_map import RevisionRecord
from queryable_operator.decide import deletion
from queryable_operator.decide.actions import Plan
from queryable_operator.decide.desired_actions import Round, upkeep
from queryable_operator.decide.events import events_between
from queryable_operator.report.status import course_of, is_lost, service_of, status_of
from queryable_operator.rollout import placements
from queryable_operator.rollout.live import Live, revisions_of
from queryable_operator.rollout.progress import has_spoken, is_available, is_caught_up, lag, refusal
from queryable_operator.rollout.revisions import Course, Facts, next_course, wish_of
from queryable_operator.rollout.rolling import outdated
from queryable_operator.rollout.status_inputs import Picture
from queryable_operator.spec import names
from queryable_operator.spec.observed import Manifest, Observed, Ref
from queryable_operator.spec.quantity import quantity
from queryable_operator.spec.resource import View, identity_of, view_of
from queryable_operator.spec.settings import OperatorSettings

_STEP_SECONDS: Final = 1.0
_HYDRATING_SECONDS: Final = 3.0
_SETTLED_SECONDS: Final = 10.0


def plan(observed: Observed, settings: OperatorSettings) -> Plan:
    identity = identity_of(observed.resource)
    if identity.deleting:
        return deletion.ending(observed)
    there, lives = observed.resource.get("status") or {}, revisions_of(observed)
    service = service_of(observed.children.get(Ref("Service", identity.name)))
    course = course_of(identity, there, lives, service, observed.now)
    view, wrong = _followed(observed.resource, course, lives)
    if view is None or view.paused or is_lost(there, course):
        picture = Picture(observed, settings, identity, view, wrong, course, lives)
        return _written(Plan(), picture)
    wish = wish_of(view, observed.topic, course, lives)
    following = next_course(course, _facts(observed, view, course, lives, service, wish))
    round_ = Round(observed, settings, view, course, following, lives, service)
    picture = Picture(
        observed=observed,
        settings=settings,
        identity=identity,
        view=view,
        wrong=wrong,
        course=following,
        lives=lives,
        wish=wish,
        moving=round_.is_moving,
        rolling=round_.is_rolling,
        lost_record=round_.has_lost_record,
    )
    return _written(upkeep(round_), picture)


def _written(work: Plan, picture: Picture) -> Plan:
    """The work, with the status that is to be written and the events that follow from it."""
    status = status_of(picture)
    changed = status != picture.status
    return replace(
        work,
        status=status if changed else None,
        events=(*work.events, *(events_between(picture.status, status) if changed else ())),
        again_seconds=_again_seconds(work, picture),
    )


def _again_seconds(work: Plan, picture: Picture) -> float:
    """Soon, where the next step waits for this one; what takes its time is not looked at all the time."""
    course, before = picture.course, picture.status.get("phase")
    waits = bool(work.tell or work.evict or work.delete or work.force_delete or work.secrets)
    caught_up = course.candidate is not None and course.candidate.caught_up_since is not None
    if (
        waits
        or picture.moving
        or picture.rolling
        or caught_up
        or course.phase in ("Provisioning", "CuttingOver")
    ):
        return _STEP_SECONDS
    if course.phase != before:
        return _STEP_SECONDS
    return _SETTLED_SECONDS if course.phase in ("Pending", "Failed", "Ready") else _HYDRATING_SECONDS


def _followed(
    resource: Manifest, course: Course, lives: Mapping[int, Live]
) -> tuple[View | None, str | None]:
    """The spec, or the last one that could be followed and why the present one cannot."""
    record = next((lives[n.number].record for n in reversed(course.kept) if n.number in lives), None)
    try:
        view = view_of(resource)
        wrong = _rejected(view, record)
        if wrong is None:
            return view, None
    except SpecError as error:
        wrong = str(error)
    if record is None:
        return None, wrong
    paused = resource["spec"].get("paused") is True
    try:
        return view_of({**resource, "spec": {**record.spec, "paused": paused}}), wrong
    except SpecError:
        return None, wrong


def _rejected(view: View, record: RevisionRecord | None) -> str | None:
    """Why a field that cannot be changed is not followed. The API server refuses most of it."""
    if record is None:
        return None
    there, storage = record.spec.get("storage", {}), view.raw["storage"]
    for field in ("storageClassName", "ephemeral"):
        if field in there and there.get(field) != storage.get(field):
            return f"spec.storage.{field}: it cannot be changed; make a new resource"
    if "size" in there and quantity(storage["size"]) < quantity(there["size"]):
        return "spec.storage.size: a volume cannot become smaller; make a new resource"
    return None


def _facts(
    observed: Observed, view: View, course: Course, lives: Mapping[int, Live], service: int | None, wish: Any
) -> Facts:
    def live(named: Any) -> Live:
        return lives.get(named.number, Live(named.number)) if named else Live(0)

    active, candidate = live(course.active), live(course.candidate)
    nodes, copies = view.spec.replicas, placements.copies_of(view)
    # As many as the Service has now; and all of them, where fewer are asked for.
    needed = max(1, min(len(active.ready), nodes))
    answering = {candidate.pods[ordinal].name for ordinal in candidate.ready} & observed.endpoints
    number = _next_number(course, lives)
    behind, most = lag(candidate), max(view.rollout.max_lag, lag(active) or 0)
    return Facts(
        now=observed.now,
        rollout=view.rollout,
        next_number=number,
        next_application_id=names.application_id(view.namespace, view.name, number, view.uid),
        wish=wish,
        suspended=view.suspended,
        made=active.number in lives,
        provisioned=len(active.pods) >= nodes and all(pod.host for pod in active.pods.values()),
        available=is_available(active),
        active_refused=refusal(active) is not None,
        active_taken=has_spoken(active) and refusal(active) is None,
        refused=refusal(candidate),
        caught_up=is_caught_up(candidate, nodes, copies, observed.now) and not outdated(candidate),
        near=behind is not None and behind <= most,
        steady=len(candidate.ready) >= needed,
        turned=service == candidate.number and len(answering) >= needed,
        previous_gone=course.previous is not None and course.previous.number not in lives,
    )


def _next_number(course: Course, lives: Mapping[int, Live]) -> int:
    """Never one that was used before, as far as anybody can tell."""
    named = [named.number for named in (*course.kept, course.previous) if named]
    past = [names.revision_number(str(entry.get("revision"))) or 0 for entry in course.history]
    return 1 + max([*named, *past, *lives], default=0)
