"""Decide the actions for a revision's rekey job, whose pod may be replaced at any moment: two jobs at once change no number."""

from __future__ import annotations

from typing import Final

from queryable_operator.build.rekey_job import rekey_stateful_set
from queryable_operator.build.settings_map import RevisionRecord
from queryable_operator.decide.actions import Plan
from queryable_operator.decide.deletion import host_is_down
from queryable_operator.rollout.live_revision import LiveRevision
from queryable_operator.rollout.pod import seconds_of
from queryable_operator.spec.observed import Observed, Ref
from queryable_operator.spec.resource import View

_UNCONFIRMED_SECONDS: Final = 30.0  # a pod so long past its deadline blocks the next one


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
