"""Inject faults into rekey jobs, and check what must hold of them."""

from __future__ import annotations

from typing import Final

from queryable_operator.rollout.live_revision import revisions_of
from queryable_operator.spec import names
from tests.operator.histories.cluster import is_executor, is_ready, rekey_revision
from tests.operator.histories.faults import FAULTS
from tests.operator.histories.history import History


def kill_job(h: History) -> None:
    if h.cluster.jobs:
        h.cluster.jobs.pop(h.random.choice(list(h.cluster.jobs)))


def delete_job(h: History) -> None:
    for kind in ("StatefulSet", "Pod"):
        for live in h.cluster.api.of(kind):
            if (
                any(part in live["metadata"]["name"] for part in ("-rekey", "-executor"))
                and h.random.random() < 0.5
            ):
                ref = next(r for r, o in h.cluster.api.objects.items() if o is live)
                h.story.append(f"   {ref}")
                h.cluster.api.delete(ref)


REKEY_FAULTS: Final = (*FAULTS, *(kill_job, delete_job) * 2)


def jobs(history: History) -> dict[str, bool]:
    """Return the pods of rekey jobs, and whether each is ready."""
    return {
        pod["metadata"]["name"]: is_ready(pod)
        for pod in history.cluster.api.of("Pod")
        if rekey_revision(pod) is not None
    }


def executors(history: History) -> dict[str, bool]:
    """Return the pods of executors, and whether each is ready."""
    return {
        pod["metadata"]["name"]: is_ready(pod) for pod in history.cluster.api.of("Pod") if is_executor(pod)
    }


def assert_one_job_for_each_revision(history: History) -> None:
    """Check a settled view: each revision that is left has its job and its internal topic, and no other one is left."""
    operator, cluster = history.operator, history.cluster
    status = operator.resource["status"]
    numbers = [
        names.revision_number(status[role]["revision"]) or 0
        for role in ("active", "candidate")
        if role in status
    ]
    assert jobs(history).keys() == {names.rekey_pod("users", number) for number in numbers}
    assert jobs(history)[names.rekey_pod("users", numbers[0])]
    expected = {names.internal_topic(cluster.application_id(number)) for number in numbers}
    # what an event named, and what nothing proved to be the resource's: a user had deleted the ConfigMap of its revision
    left = [event.message for event in operator.events if event.reason == "CleanupFailed"]
    left += [
        names.internal_topic(cluster.application_id(number))
        for number in range(1, 200)
        if any(
            f"name='{names.child('users', number)}'" in line for line in history.story if "ConfigMap" in line
        )
    ]
    unnamed = {t for t in cluster.internal_topics - expected if not any(t in message for message in left)}
    assert unnamed == set(), unnamed
    assert names.internal_topic(cluster.application_id(numbers[0])) in cluster.internal_topics
    live = revisions_of(operator.observe())
    assert all(number in live for number in numbers)
    asked = operator.resource["spec"].get("ingest", {}).get("executors", 0)
    wanted: set[str] = set()
    for number in numbers:
        record = live[number].record
        count = asked if record is None else min(asked, record.partitions)
        wanted |= {names.executor_pod("users", number, index) for index in range(count)}
    assert executors(history).keys() == wanted
