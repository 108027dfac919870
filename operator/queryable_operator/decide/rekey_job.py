"""Decide the actions for a revision's rekey job, and what its nodes wait for before they first start.

The job's pod may be replaced at any moment: two jobs at once change no number. Nodes start when the job's check has reported the
format of group keys. A revision whose number was used before finds no internal topic of that time: it is deleted first.
"""

from __future__ import annotations

from typing import Final

from queryable_operator.build.rekey_job import rekey_stateful_set
from queryable_operator.build.settings_map import RevisionRecord
from queryable_operator.decide.actions import Plan, TopicDeletion
from queryable_operator.decide.deletion import host_is_down
from queryable_operator.rollout.live_revision import LiveRevision
from queryable_operator.rollout.pod import seconds_of
from queryable_operator.spec import names
from queryable_operator.spec.observed import Observed, Ref
from queryable_operator.spec.resource import View

_UNCONFIRMED_SECONDS: Final = 30.0  # a pod so long past its deadline blocks the next one


def leftover_topic(
    observed: Observed, view: View, live: LiveRevision, record: RevisionRecord
) -> TopicDeletion | None:
    """Return the internal topic that must not exist when a revision first starts, unless this operator has deleted it. It is for
    a revision that may not have started; every sign of a start is reason enough to keep the topic."""
    if record.rekey_template is None or record.group_key_format:
        return None
    if (
        "StatefulSet" in live.objects
        or live.claims
        or live.all_pods
        or live.rekey_job.stateful_set is not None
    ):
        return None
    topic = names.internal_topic(record.placement.application_id)
    deletion = TopicDeletion(view.spec.bootstrap_servers, topic, live.config_map_uid, before_start=True)
    return None if observed.topic_deletions.get(deletion.key, "") is None else deletion


def startable_pods(live: LiveRevision, record: RevisionRecord, replicas: int) -> int:
    """Return how many of the desired pods of nodes may exist now. Without the format of group keys no container starts; pods
    that exist stay."""
    if record.rekey_template is None or record.group_key_format:
        return replicas
    return min(replicas, max([live.replicas, *(index + 1 for index in live.pods)]))


def apply_rekey_job(observed: Observed, view: View, live: LiveRevision, record: RevisionRecord) -> Plan:
    """Apply the job of a revision whose ConfigMap and token exist. `view` follows the spec that the revision records.

    Kubernetes restarts the pod after a change of the template. It does not restart a pod with an outdated token, and does not
    replace a pod on a lost host.
    """
    if record.rekey_template is None:
        return Plan()
    replicas = 0 if view.suspended else 1
    apply = (rekey_stateful_set(view, live.number, record.rekey_template, replicas),)
    pod = live.rekey_job.pod
    if pod is None:
        return Plan(apply=apply)
    ref, deadline = Ref("Pod", pod.name), pod.termination_deadline
    if host_is_down(pod, observed.hosts) or (
        deadline is not None and observed.now >= deadline + _UNCONFIRMED_SECONDS
    ):
        return Plan(apply=apply, force_delete=(ref,))
    token = live.objects.get("Secret", {}).get("metadata", {})
    if deadline is None and pod.created < (seconds_of(token.get("creationTimestamp")) or 0.0):
        return Plan(apply=apply, delete=(ref,))
    return Plan(apply=apply)
