"""Decide how a retired revision is removed, and a deleted resource with everything that it left in Kafka.

The objects that create pods go first, then the pods, then the internal topic, which a pod that still runs could create again,
and at last the ConfigMap, which identifies the revision. Every deletion is repeated until it has happened, and every wait has a
limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from queryable_operator.decide.actions import Event, Plan, TopicDeletion
from queryable_operator.report import conditions
from queryable_operator.rollout.live_revision import LiveRevision, revisions_of
from queryable_operator.rollout.pod import Pod, seconds_of
from queryable_operator.spec import names
from queryable_operator.spec.observed import Host, KafkaUnreachable, Observed, Ref
from queryable_operator.spec.rekeying import is_rekeyed
from queryable_operator.spec.resource import View

_RETIRED_SECONDS: Final = 10.0  # after the cut-over, for requests on connections that are still open
_STUCK_SECONDS: Final = 300.0  # a pod so long past its deadline has no kubelet that could confirm its end
_KAFKA_SECONDS: Final = 300.0
_NAMED_MAX: Final = 8  # the length of an event's message is limited
_CLEANUP_FAILED: Final = "CleanupFailed"


def is_removable(number: int, retired: float | None, service: int | None, now: float) -> bool:
    """Return whether a retired revision can be removed: the Service, which selects the revision `service`, sends it no
    requests."""
    return number != service and (retired is None or now >= retired + _RETIRED_SECONDS)


def next_deletions(view: str, live: LiveRevision) -> tuple[Ref, ...]:
    """Return the objects of a retired revision that can be deleted now."""
    name = names.child(view, live.number)
    objects = [Ref(kind, name) for kind in sorted(live.objects) if kind != "ConfigMap"]
    objects += _job_objects(view, live)
    if objects:
        return tuple(objects)
    if live.all_pods or live.claims:  # nothing recreates them now
        return (*_pods(live), *_claims(view, live))
    return (Ref("ConfigMap", name),)


def plan_removal(observed: Observed, view: View, live: LiveRevision, retired: float | None) -> Plan:
    """Plan the next deletions of a removable revision."""
    refs = next_deletions(view.name, live)
    if not any(ref.kind == "ConfigMap" for ref in refs):
        return Plan(delete=refs, force_delete=tuple(stuck_pods(live, observed.hosts, observed.now)))
    topic = _internal_topic_left(observed, view, live)
    if topic is None:
        return Plan(delete=refs)
    failed = observed.topic_deletions.get(topic.key)
    if isinstance(observed.topic, KafkaUnreachable):
        failed = observed.topic.reason
    if failed is None or (retired is not None and observed.now < retired + _KAFKA_SECONDS):
        tried = () if isinstance(observed.topic, KafkaUnreachable) else (topic,)
        return Plan(delete_topics=tried)
    message = f"The internal topic {topic.topic} may be left in Kafka: {failed}"
    return Plan(delete=refs, events=(Event("Warning", _CLEANUP_FAILED, message),))


def _internal_topic_left(observed: Observed, view: View, live: LiveRevision) -> TopicDeletion | None:
    """Return the internal topic of a revision unless this operator has deleted it. A revision whose ConfigMap was edited had one
    if the view has one now."""
    spec = view.raw if live.record is None else live.record.spec
    if not is_rekeyed(spec):
        return None
    topic = names.internal_topic(names.application_id(view.namespace, view.name, live.number, view.uid))
    deletion = TopicDeletion(spec["kafka"]["bootstrapServers"], topic, live.config_map_uid)
    return None if observed.topic_deletions.get(deletion.key, "") is None else deletion


def stuck_pods(live: LiveRevision, hosts: Mapping[str, Host] | None, now: float) -> Iterator[Ref]:
    """Yield the deleted pods whose end no kubelet will confirm."""
    for pod in live.all_pods:
        if (
            pod.termination_deadline is not None
            and now >= pod.termination_deadline
            and (_is_past_deadline(pod, now) or host_is_down(pod, hosts))
        ):
            yield Ref("Pod", pod.name)


def plan_deletion(observed: Observed) -> Plan:
    """Plan the deletion of a resource, whatever its spec says. Kubernetes deletes the objects with an owner reference."""
    metadata, spec = observed.resource["metadata"], observed.resource.get("spec") or {}
    if names.FINALIZER not in (metadata.get("finalizers") or ()):
        return Plan()
    view, retain = str(metadata["name"]), spec.get("deletionPolicy") == "Retain"
    live_revisions = revisions_of(observed).values()
    delete = tuple(ref for live in live_revisions for ref in _objects_to_delete(view, live, retain))
    if any(live.all_pods or _stateful_sets(view, live) for live in live_revisions):
        forced = tuple(
            ref for live in live_revisions for ref in stuck_pods(live, observed.hosts, observed.now)
        )
        status = _status(observed, "The pods are terminating.")
        return Plan(delete=delete, force_delete=forced, status=status, requeue_seconds=1.0)
    if retain or observed.kafka_cleaned or not (live_revisions or _may_have_revisions(observed)):
        return Plan(delete=delete, events=_retained_in_kafka(observed), remove_finalizer=True)
    refused = observed.kafka_cleanup_error
    if refused is None or not _has_waited_for_kafka(observed):
        why = f"The cleanup in Kafka fails: {refused}" if refused else "The cleanup in Kafka is in progress."
        status = _status(observed, why, refused is not None)
        return Plan(delete=delete, clean_kafka=True, status=status, requeue_seconds=2.0)
    left = names.application_id(metadata["namespace"], view, 1, str(metadata["uid"])).replace(".r1-", ".r*-")
    message = f"Groups, dead-letter topics and internal topics named {left} may be left in Kafka: {refused}"
    return Plan(delete=delete, events=(Event("Warning", _CLEANUP_FAILED, message),), remove_finalizer=True)


def _retained_in_kafka(observed: Observed) -> tuple[Event, ...]:
    """Return an event about groups and topics with names of an earlier release, which a view in another cluster may own."""
    if not (unproven := observed.kafka_retained):
        return ()
    more = f" and {len(unproven) - _NAMED_MAX} more" if len(unproven) > _NAMED_MAX else ""
    message = (
        f"Left in Kafka, since a view with this name in another cluster may own it: "
        f"{', '.join(unproven[:_NAMED_MAX])}{more}. Delete it if no such view exists"
    )
    return (Event("Warning", _CLEANUP_FAILED, message),)


def _may_have_revisions(observed: Observed) -> bool:
    """Return whether the resource may ever have had a revision. Status names a revision before any of its objects exist, in
    Kubernetes or in Kafka. An empty status may have been lost."""
    status = observed.resource.get("status") or {}
    return status.get("phase") != "Pending" or any(
        status.get(name) for name in ("active", "candidate", "history")
    )


def _objects_to_delete(view: str, live: LiveRevision, retain: bool) -> tuple[Ref, ...]:
    if stateful_sets := _stateful_sets(view, live):
        return stateful_sets
    return (*_pods(live), *(() if retain else _claims(view, live)))


def _stateful_sets(view: str, live: LiveRevision) -> tuple[Ref, ...]:
    nodes = (Ref("StatefulSet", names.child(view, live.number)),) if "StatefulSet" in live.objects else ()
    return (*nodes, *_job_objects(view, live))


def _job_objects(view: str, live: LiveRevision) -> tuple[Ref, ...]:
    job, executors = names.rekey_job(view, live.number), names.executors(view, live.number)
    there = (
        (live.rekey_job.stateful_set, Ref("StatefulSet", job)),
        (live.executors.stateful_set, Ref("StatefulSet", executors)),
        (live.executors.service, Ref("Service", job)),
    )
    return tuple(ref for manifest, ref in there if manifest is not None)


def _pods(live: LiveRevision) -> Iterator[Ref]:
    return (Ref("Pod", pod.name) for pod in live.all_pods if pod.termination_deadline is None)


def _claims(view: str, live: LiveRevision) -> Iterator[Ref]:
    for index, claim in sorted(live.claims.items()):
        if "deletionTimestamp" not in claim.get("metadata", {}):
            yield Ref("PersistentVolumeClaim", names.volume_claim(view, live.number, index))


def _is_past_deadline(pod: Pod, now: float) -> bool:
    return pod.termination_deadline is not None and now >= pod.termination_deadline + _STUCK_SECONDS


def host_is_down(pod: Pod, hosts: Mapping[str, Host] | None) -> bool:
    """Return whether the pod is on a host that is lost, as far as known."""
    if hosts is None or pod.host is None:
        return False
    host = hosts.get(pod.host)
    return host is None or not host.ready


def _status(observed: Observed, message: str, failed: bool = False) -> Mapping[str, Any] | None:
    before = observed.resource.get("status") or {}
    reason = _CLEANUP_FAILED if failed else "Deleting"
    evaluated = (
        conditions.Condition("Progressing", True, "Deleting", message),
        conditions.Condition("Degraded", failed, reason, message),
    )
    generation = observed.resource["metadata"].get("generation", 1)
    after = {
        **before,
        "message": message,
        "conditions": conditions.merge_conditions(evaluated, before, generation, observed.now),
    }
    return None if after == before else after


def _has_waited_for_kafka(observed: Observed) -> bool:
    degraded = conditions.conditions_by_type(observed.resource.get("status") or {}).get("Degraded", {})
    since = seconds_of(degraded.get("lastTransitionTime"))
    failing = degraded.get("status") == "True" and degraded.get("reason") == _CLEANUP_FAILED
    return failing and since is not None and observed.now >= since + _KAFKA_SECONDS
