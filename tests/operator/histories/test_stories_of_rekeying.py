"""Test the life of a rekey job beside the nodes of its revision."""

from __future__ import annotations

import random
from typing import Any

import pytest

from queryable_operator.report.conditions import conditions_by_type
from queryable_operator.spec import names
from tests.operator.histories.cluster import Cluster, SimulatedHost
from tests.operator.histories.history import History, delete_resource
from tests.operator.histories.nodes import REFUSED, SENTENCE
from tests.operator.histories.rekeyed import (
    REKEY_FAULTS,
    assert_one_job_for_each_revision,
    executors,
    jobs,
)
from tests.operator.histories.story import (
    begun,
    change,
    condition,
    is_gone_after,
    live,
    reasons,
    settled,
    status,
    until_phase,
)
from tests.operator.histories.test_histories import (
    assert_gone,
    assert_settled,
    delete_at_any_moment,
    run_until_settled,
    story_in_failure,
)
from tests.support.rekeyed import WORDS

HISTORIES = 20
AT_ONCE = 4


def word_count(**spec: Any) -> History:
    return settled(view=WORDS, **spec)


def topic_of(history: History, number: int) -> str:
    return names.internal_topic(history.cluster.application_id(number))


@pytest.mark.parametrize("first", range(0, HISTORIES, AT_ONCE))
def test_history_of_a_rekeyed_view_ends_settled(first: int) -> None:
    """Spec changes, faults, a job that is killed or deleted, and an operator that ends between any two actions break no
    invariant. In the end each revision has one job with its executors, and no internal topic of a retired one is left."""
    for seed in range(first, first + AT_ONCE):
        history = History.begin(seed + 30_000, view=WORDS, ingest={"executors": seed % 3})
        history.faults = REKEY_FAULTS
        run_until_settled(seed, history)
        with story_in_failure(seed, history):
            assert_one_job_for_each_revision(history)


@pytest.mark.parametrize("first", range(0, HISTORIES, AT_ONCE))
def test_deleted_rekeyed_view_leaves_nothing(first: int) -> None:
    """A deletion at any moment removes every object and every internal topic, or an event says that they may remain."""
    for seed in range(first, first + AT_ONCE):
        history = History.begin(seed + 40_000, view=WORDS, ingest={"executors": seed % 3})
        history.faults = REKEY_FAULTS
        with story_in_failure(seed, history):
            delete_at_any_moment(seed, history)
            assert_gone(history)


def test_word_count_has_one_job_that_is_no_node() -> None:
    """A rekeyed view has one job beside its nodes, which the Service does not select and `nodes` does not count."""
    history = word_count()

    assert jobs(history) == {"users-r1-rekey-0": True}
    assert status(history)["nodes"] == "3/3"
    assert history.cluster.endpoints == {"users-r1-0", "users-r1-1", "users-r1-2"}
    assert condition(history, "Degraded") == ("False", "AsWanted")
    assert_settled(history)


def test_other_views_have_no_job() -> None:
    """A view that groups by the record key has no job."""
    history = settled(view={"kind": "aggregate", "aggregate": {"columns": [{"name": "n", "op": "count"}]}})

    assert jobs(history) == {}
    assert not history.cluster.internal_topics


def test_candidate_has_a_job_of_its_own_and_the_old_topic_goes_last() -> None:
    """During a rollout both revisions have a job. After the cut-over the old one's objects and internal topic are deleted."""
    history = word_count()
    change(history, topic="others")
    until_phase(history, "CuttingOver")
    assert jobs(history) == {"users-r1-rekey-0": True, "users-r2-rekey-0": True}

    history.settle()
    assert_one_job_for_each_revision(history)
    assert topic_of(history, 1) in history.cluster.deleted_topics
    assert not any("-r1" in ref.name for ref in history.cluster.api.objects)


def test_roll_restarts_the_job() -> None:
    """A change that restarts pods restarts the job too, which keeps its name and its topic."""
    history = word_count()
    before = live(history, "Pod", "users-r1-rekey-0")["metadata"]["uid"]
    change(history, podTemplate={"labels": {"team": "a"}})
    history.settle()

    pod = live(history, "Pod", "users-r1-rekey-0")
    assert pod["metadata"]["uid"] != before
    assert pod["metadata"]["labels"]["team"] == "a"
    assert_settled(history)


def test_new_token_restarts_the_job() -> None:
    """After the deletion of the token Secret the job restarts too, since it calls the nodes with the token."""
    history = word_count()
    before = live(history, "Pod", "users-r1-rekey-0")["metadata"]["uid"]
    history.pass_time(5)
    history.cluster.api.delete(next(ref for ref in history.cluster.api.objects if ref.kind == "Secret"))
    history.settle()

    assert live(history, "Pod", "users-r1-rekey-0")["metadata"]["uid"] != before
    assert_one_job_for_each_revision(history)


def test_suspended_view_has_no_job() -> None:
    """Suspending deletes the job's pod, and resuming creates it again."""
    history = word_count()
    change(history, suspended=True)
    history.settle()
    assert jobs(history) == {}
    assert topic_of(history, 1) in history.cluster.internal_topics

    change(history, suspended=False)
    history.settle()
    assert jobs(history) == {"users-r1-rekey-0": True}


def test_deleted_job_comes_back() -> None:
    """A deleted StatefulSet of a job is recreated, and an event says so."""
    history = word_count()
    history.cluster.api.delete(
        next(ref for ref in history.cluster.api.objects if ref.name == "users-r1-rekey")
    )
    history.settle()

    assert reasons(history) == ["DriftCorrected"]
    assert jobs(history) == {"users-r1-rekey-0": True}


def test_number_of_executors_changes_without_a_restart() -> None:
    """A change of `ingest.executors` restarts no node and no executor that stays, and 0 leaves nothing of them."""
    history = word_count(ingest={"executors": 1})
    uids = {
        pod: live(history, "Pod", pod)["metadata"]["uid"] for pod in ("users-r1-0", "users-r1-executor-0")
    }
    change(history, ingest={"executors": 3})
    history.settle()
    assert executors(history) == {f"users-r1-executor-{index}": True for index in range(3)}
    assert {pod: live(history, "Pod", pod)["metadata"]["uid"] for pod in uids} == uids

    change(history, ingest={"executors": 0})
    history.settle()
    assert executors(history) == {}
    assert not any(
        ref.name == "users-r1-rekey" for ref in history.cluster.api.objects if ref.kind == "Service"
    )
    assert live(history, "Pod", "users-r1-0")["metadata"]["uid"] == uids["users-r1-0"]
    assert_settled(history)


def test_executors_leave_a_lost_host_at_once() -> None:
    """An executor's pod on a lost host is replaced as the job's is, and more executors than partitions are not made."""
    history = word_count(replaceAfter="1h", ingest={"executors": 9})
    assert len(executors(history)) == 4
    lost = live(history, "Pod", "users-r1-executor-0")["spec"]["nodeName"]
    history.cluster.lose_host(lost)
    for _ in range(25):
        history.pass_time(1)
        history.run_pass()

    assert live(history, "Pod", "users-r1-executor-0")["spec"]["nodeName"] != lost
    assert executors(history) == {f"users-r1-executor-{index}": True for index in range(4)}


def test_job_leaves_a_lost_host_at_once() -> None:
    """The job does not wait for `replaceAfter`: two jobs at once change no number."""
    history = word_count(replaceAfter="1h")
    lost = live(history, "Pod", "users-r1-rekey-0")["spec"]["nodeName"]
    history.cluster.lose_host(lost)
    for _ in range(25):
        history.pass_time(1)
        history.run_pass()

    assert live(history, "Pod", "users-r1-rekey-0")["spec"]["nodeName"] != lost
    assert jobs(history) == {"users-r1-rekey-0": True}


def test_refused_sql_of_a_candidate_is_reported_by_its_job() -> None:
    """Only the job reads the SQL. The permanent failure that it names drops the candidate at once."""
    history = word_count()
    change(history, transform={"sql": REFUSED})
    history.settle()

    assert status(history)["active"]["revision"] == "r1"
    assert "RolloutFailed" in reasons(history)
    entry = conditions_by_type(status(history))["SpecValid"]
    assert (entry["status"], entry["reason"], entry["message"]) == ("False", "TransformRefused", SENTENCE)
    assert topic_of(history, 2) not in history.cluster.internal_topics


def test_unreachable_kafka_delays_the_retirement_for_five_minutes() -> None:
    """An internal topic that cannot be deleted delays the retirement for five minutes. Then an event names it."""
    history = word_count()
    change(history, topic="others")
    until_phase(history, "Retiring")
    history.cluster.kafka_is_there = False
    for _ in range(60):
        history.pass_time(2)
        history.run_pass()
    assert status(history)["phase"] == "Retiring"
    assert "CleanupFailed" not in reasons(history)

    for _ in range(120):
        history.pass_time(2)
        history.run_pass()
    assert status(history)["phase"] == "Ready"
    (event,) = [event for event in history.operator.events if event.reason == "CleanupFailed"]
    assert topic_of(history, 1) in event.message


def test_retained_internal_topic_outlives_the_resource() -> None:
    """With `deletionPolicy: Retain` the internal topic of the active revision stays, like the volumes."""
    history = word_count(deletionPolicy="Retain")
    delete_resource(history)

    assert is_gone_after(history, 200)
    assert history.cluster.internal_topics == {topic_of(history, 1)}


def test_first_job_without_a_host_is_explained() -> None:
    """While no host runs the job of the first revision, the progress message says why nothing hydrates."""
    cluster = Cluster(random.Random(7), {"host-0": SimulatedHost("zone-0")})
    cluster.job_problem = "0/1 nodes are available: insufficient memory"
    history = settled(cluster, replicas=1, standbyReplicas=0, view=WORDS)

    assert status(history)["phase"] == "Provisioning"
    assert "The rekey job of r1 does not run: 0/1 nodes are available" in status(history)["message"]
    assert condition(history, "Degraded") == ("True", "RekeyJobFailed")
    assert reasons(history).count("RekeyJobFailed") <= 1


def pods_of_nodes(history: History) -> list[str]:
    found = [pod["metadata"]["name"] for pod in history.cluster.api.of("Pod")]
    return [name for name in found if name not in jobs(history)]


@pytest.mark.parametrize("seed", range(4))
def test_nodes_start_when_the_check_has_reported(seed: int) -> None:
    """No pod of a node is created before Spark has accepted the view, and the message says what the operator waits for."""
    history = begun(Cluster(random.Random(seed), {"host-0": SimulatedHost("zone-0")}), view=WORDS)
    messages = set()
    while not pods_of_nodes(history):
        history.run_pass()
        messages.add(status(history).get("message"))
        history.pass_time(1)
    assert history.cluster.checks == 1
    assert any("Spark checks the view before its nodes start." in message for message in messages)


def test_one_check_is_enough() -> None:
    """Further nodes, and restarts of all pods, need no other check."""
    history = word_count()
    change(history, podTemplate={"labels": {"team": "a"}}, replicas=4)
    history.settle()

    assert_settled(history)
    assert history.cluster.checks == 1


def test_deleted_config_map_gets_the_format_again() -> None:
    """After the deletion of the ConfigMap the format of group keys comes from the job's pod, and no node restarts."""
    history = word_count()
    before = {pod["metadata"]["uid"] for pod in history.cluster.api.of("Pod")}
    history.cluster.api.delete(next(ref for ref in history.cluster.api.objects if ref.kind == "ConfigMap"))
    history.settle()

    assert live(history, "ConfigMap", "users-r1")["data"]["group-key-format"] == "string"
    assert {pod["metadata"]["uid"] for pod in history.cluster.api.of("Pod")} == before


def test_topic_of_an_earlier_revision_is_deleted_before_the_first_start() -> None:
    """An internal topic with the name of a new revision is left from a lost one. It is deleted before any pod starts, once."""
    history = begun(view=WORDS)
    history.cluster.internal_topics.add(topic_of(history, 1))
    deletions = []
    while not history.cluster.api.of("Pod"):
        history.run_pass()
        deletions.append(topic_of(history, 1) in history.cluster.deleted_topics)
        history.pass_time(1)
    assert deletions[-1]

    history.settle()
    history.cluster.deleted_topics.clear()
    history.cluster.api.delete(
        next(ref for ref in history.cluster.api.objects if ref.name == "users-r1-rekey")
    )
    history.settle()
    assert not history.cluster.deleted_topics
    assert topic_of(history, 1) in history.cluster.internal_topics


def test_topic_of_an_earlier_revision_that_cannot_be_deleted_delays_the_start() -> None:
    """While Kafka refuses to delete the internal topic of an earlier revision, no pod starts, and the message says why."""
    history = begun(view=WORDS)
    history.cluster.internal_topics.add(topic_of(history, 1))
    history.cluster.may_delete_topics = False
    for _ in range(20):
        history.run_pass()
        history.pass_time(1)
    assert history.cluster.api.of("Pod") == []
    assert "may have left records in Kafka: TopicAuthorizationFailedError" in status(history)["message"]

    history.cluster.may_delete_topics = True
    history.settle()
    assert jobs(history) == {"users-r1-rekey-0": True}


def test_first_revision_with_refused_sql_fails() -> None:
    """A view whose SQL is refused from the beginning fails with Spark's sentence, and a corrected one takes over."""
    history = begun(view=WORDS, transform={"sql": REFUSED})
    history.settle()
    assert status(history)["phase"] == "Failed"
    assert status(history)["message"].endswith(SENTENCE)
    assert condition(history, "SpecValid") == ("False", "TransformRefused")
    assert pods_of_nodes(history) == []

    change(history, transform={"sql": "SELECT word FROM records"})
    history.settle()
    assert status(history)["active"]["revision"] == "r2"
    assert condition(history, "SpecValid") == ("True", "Valid")
