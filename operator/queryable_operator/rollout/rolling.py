"""Choose the next pod to recreate because its template or token is outdated.

A pod that is not ready goes first: little is lost, and the new template may fix it. The others go from the highest ordinal
down. Two pods never go at once: a recreated pod must catch up before the next one goes.
"""

from __future__ import annotations

from queryable_app.placement.assignment import Placement
from queryable_operator.rollout.live_revision import LiveRevision
from queryable_operator.rollout.pod import seconds_of
from queryable_operator.rollout.progress import has_caught_up, is_fully_replicated
from queryable_operator.spec.observed import Manifest
from queryable_operator.spec.pods import PodIndex


def outdated_pods(live: LiveRevision) -> frozenset[PodIndex]:
    """Return the pods with an outdated template or token. While the StatefulSet's status is older than its spec, templates
    are unknown."""
    stateful_set, secret = live.objects.get("StatefulSet"), live.objects.get("Secret")
    if stateful_set is None or secret is None:
        return frozenset()
    template = _current_template(stateful_set)
    token_made = seconds_of(secret.get("metadata", {}).get("creationTimestamp")) or 0.0
    return frozenset(
        index
        for index, pod in live.pods.items()
        if (template is not None and pod.template != template) or pod.created < token_made
    )


def may_have_outdated_pods(live: LiveRevision) -> bool:
    """Return whether a pod is outdated, or whether that is unknown."""
    stateful_set = live.objects.get("StatefulSet")
    return stateful_set is not None and (_current_template(stateful_set) is None or bool(outdated_pods(live)))


def next_to_roll(
    live: LiveRevision, placement: Placement, pods: int, replicas: int, now: float
) -> str | None:
    """Return a pod that may go now. `pods` is the full number of pods, `replicas` the full number per partition."""
    staying = range(max(pods, live.layout.pods_with(len(placement.addresses))))
    old = frozenset(pod for pod in outdated_pods(live) if pod in staying)
    if not old or any(pod.termination_deadline is not None for pod in live.pods.values()):
        return None
    if unwell := old - live.ready:  # nothing waits for a pod that is not ready
        return live.pods[max(unwell)].name
    behind = {pod for pod in live.pods if not has_caught_up(live, placement, pod, now)}
    if not is_fully_replicated(live, placement, pods, replicas) or not behind <= old:
        return None
    return live.pods[max(old, key=lambda pod: (pod in behind, pod))].name


def _current_template(stateful_set: Manifest) -> str | None:
    status = stateful_set.get("status") or {}
    seen = status.get("observedGeneration") == stateful_set.get("metadata", {}).get("generation")
    template = status.get("updateRevision")
    return template if seen and isinstance(template, str) else None
