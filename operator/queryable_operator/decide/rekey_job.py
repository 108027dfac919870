"""Decide the actions for a revision's rekey job, and what its nodes wait for before they first start.

The job's pod may be replaced at any moment: two jobs at once change no number. Nodes start when the job's check has reported the
format of group keys. A revision whose number was used before finds no internal topic of that time: it is deleted first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from queryable_operator.build.executors import driver_template, executor_stateful_set
from queryable_operator.build.rekey_job import rekey_stateful_set
from queryable_operator.build.services import rekey_driver
from queryable_operator.build.settings_map import RevisionRecord
from queryable_operator.decide.actions import Plan, TopicDeletion
from queryable_operator.decide.deletion import host_is_down
from queryable_operator.rollout.live_revision import LiveRevision
from queryable_operator.rollout.pod import Pod, seconds_of
from queryable_operator.spec import names
from queryable_operator.spec.observed import Observed, Ref
from queryable_operator.spec.rekeying import executor_count
from queryable_operator.spec.resource import View
from queryable_operator.spec.settings import OperatorSettings

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


def apply_rekey_job(
    observed: Observed, view: View, live: LiveRevision, record: RevisionRecord, settings: OperatorSettings
) -> Plan:
    """Apply the job and its executors, of a revision whose ConfigMap and token exist. `view` follows the spec that it records.

    Kubernetes restarts pods after a change of the template. It does not restart a pod with an outdated token, and does not
    replace a pod on a lost host.
    """
    if record.rekey_template is None:
        return Plan()
    executors = 0 if view.suspended else executor_count(view.raw, record.partitions)
    with_executors = executor_count(view.raw) > 0
    template = driver_template(record.rekey_template) if with_executors else record.rekey_template
    apply = [rekey_stateful_set(view, live.number, template, 0 if view.suspended else 1)]
    if with_executors:
        of_executors = executor_stateful_set(view, live.number, record.rekey_template, executors, settings)
        apply += [rekey_driver(view, live.number), of_executors]
    pods = [_unsuitable_pod(observed, live, pod) for pod in (live.rekey_job.pod, *live.executors.pods)]
    return Plan(
        apply=tuple(apply),
        delete=(
            *(Ref("Pod", name) for name, forced in filter(None, pods) if not forced),
            *(() if with_executors else _left_of_executors(view, live)),
        ),
        force_delete=tuple(Ref("Pod", name) for name, forced in filter(None, pods) if forced),
    )


def _unsuitable_pod(observed: Observed, live: LiveRevision, pod: Pod | None) -> tuple[str, bool] | None:
    """Return the name of a pod that Kubernetes does not replace by itself, and whether nothing will confirm its end."""
    if pod is None:
        return None
    deadline = pod.termination_deadline
    if host_is_down(pod, observed.hosts) or (
        deadline is not None and observed.now >= deadline + _UNCONFIRMED_SECONDS
    ):
        return pod.name, True
    token = live.objects.get("Secret", {}).get("metadata", {})
    if deadline is None and pod.created < (seconds_of(token.get("creationTimestamp")) or 0.0):
        return pod.name, False
    return None


def _left_of_executors(view: View, live: LiveRevision) -> Iterator[Ref]:
    """Yield what is left of executors that the resource no longer asks for. Their pods end with the StatefulSet."""
    if live.executors.stateful_set is not None:
        yield Ref("StatefulSet", names.executors(view.name, live.number))
    if live.executors.service is not None:
        yield Ref("Service", names.rekey_job(view.name, live.number))
