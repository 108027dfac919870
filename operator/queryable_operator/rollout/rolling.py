"""Which pod is made anew next, because it was made of an old template or knows an old token.

Strategy: one that is not well goes first, since little is lost by it and the new template may be its cure; the others go from
the highest ordinal down. It is never two at a time: what was made anew must have caught up before the next one goes.
"""

from __future__ import annotations

from queryable_app.placement.assignment import Placement
from queryable_operator.rollout.live import LiveRevision, seconds_of
from queryable_operator.rollout.progress import has_caught_up, is_fully_replicated
from queryable_operator.spec.observed import Manifest


def outdated_pods(live: LiveRevision) -> frozenset[int]:
    """While the StatefulSet's controller has not seen its newest template, nobody knows."""
    stateful_set, secret = live.objects.get("StatefulSet"), live.objects.get("Secret")
    if stateful_set is None or secret is None:
        return frozenset()
    template = _current_template(stateful_set)
    token_made = seconds_of(secret.get("metadata", {}).get("creationTimestamp")) or 0.0
    return frozenset(
        ordinal
        for ordinal, pod in live.pods.items()
        if (template is not None and pod.template != template) or pod.created < token_made
    )


def may_have_outdated_pods(live: LiveRevision) -> bool:
    """Whether there is one, or nobody knows."""
    stateful_set = live.objects.get("StatefulSet")
    return stateful_set is not None and (_current_template(stateful_set) is None or bool(outdated_pods(live)))


def next_to_roll(live: LiveRevision, placement: Placement, nodes: int, copies: int, now: float) -> str | None:
    """A pod that may go now. `nodes`, and `copies` of each partition, are the full numbers."""
    staying = range(max(nodes, len(placement.addresses)))
    old = outdated_pods(live).intersection(staying)
    if not old or any(pod.termination_deadline is not None for pod in live.pods.values()):
        return None
    if unwell := old - live.ready:  # it waits for nobody
        return live.pods[max(unwell)].name
    behind = {ordinal for ordinal in live.pods if not has_caught_up(live, placement, ordinal, now)}
    if not is_fully_replicated(live, placement, nodes, copies) or not behind <= old:
        return None
    return live.pods[max(old, key=lambda ordinal: (ordinal in behind, ordinal))].name


def _current_template(stateful_set: Manifest) -> str | None:
    status = stateful_set.get("status") or {}
    seen = status.get("observedGeneration") == stateful_set.get("metadata", {}).get("generation")
    template = status.get("updateRevision")
    return template if seen and isinstance(template, str) else None
