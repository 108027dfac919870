"""Stories of a spec that nodes refuse: Spark does not take its SQL, and no waiting mends it."""

from __future__ import annotations

import pytest

from queryable_operator.report.conditions import conditions_by_type
from queryable_operator.rollout.live_revision import seconds_of
from tests.operator.histories.history import History
from tests.operator.histories.nodes import REFUSED, REFUSED_SETTINGS, SENTENCE
from tests.operator.histories.story import change, condition, reasons, settled, status

GOOD = "SELECT key FROM records"


def refused_candidate(on_failure: str = "DeleteCandidate") -> History:
    """A view that serves, with an hour for a candidate, and then a spec that nodes refuse."""
    history = settled()
    rollout = history.operator.resource["spec"]["rollout"]
    rollout = {**rollout, "hydrationDeadline": "1h", "onFailure": on_failure}
    change(history, transform={"sql": REFUSED}, rollout=rollout)
    history.settle()
    return history


@pytest.mark.parametrize("on_failure", ["DeleteCandidate", "KeepCandidate"])
def test_a_refused_candidate_ends_at_once(on_failure: str) -> None:
    """Its deadline is an hour; the sentence with the position is in the history and in the event."""
    history = refused_candidate(on_failure)

    (failed,) = [entry for entry in status(history)["history"] if entry["outcome"] == "Failed"]
    assert (seconds_of(failed["until"]) or 0) - (seconds_of(failed["since"]) or 0) < 60
    assert failed["reason"] == SENTENCE
    (event,) = [event for event in history.operator.events if event.reason == "RolloutFailed"]
    assert (event.type, SENTENCE in event.message) == ("Warning", True)
    assert ("candidate" in status(history)) == (on_failure == "KeepCandidate")


def test_after_a_refused_candidate_the_resource_says_so_while_the_old_revision_serves() -> None:
    """Every word of it: `kubectl get` shows the message, `kubectl describe` the conditions."""
    history = refused_candidate()

    assert condition(history, "Available") == ("True", "Serving")
    assert condition(history, "SpecValid") == ("False", "TransformRefused")
    assert condition(history, "Degraded") == ("True", "RolloutFailed")
    assert condition(history, "Progressing") == ("False", "RolloutFailed")
    assert conditions_by_type(status(history))["SpecValid"]["message"] == SENTENCE
    assert SENTENCE in conditions_by_type(status(history))["Degraded"]["message"]
    assert status(history)["message"] == SENTENCE
    assert (status(history)["active"]["revision"], status(history)["phase"]) == ("r1", "Ready")


@pytest.mark.parametrize("right", [{"sql": GOOD}, None], ids=["corrected", "put back"])
def test_a_refused_candidate_is_forgotten_when_the_spec_is_put_right(right: dict[str, str] | None) -> None:
    """The view is as it should be, and nothing speaks of the refusal but the history."""
    history = refused_candidate()
    history.operator.resource["spec"].pop("transform")
    change(history, **({"transform": right} if right else {}))
    history.settle()

    assert status(history)["active"]["revision"] == ("r3" if right else "r1")
    assert condition(history, "SpecValid") == ("True", "Valid")
    assert condition(history, "Degraded") == ("False", "AsWanted")
    assert status(history)["message"] == "Everything is as the spec asks."
    assert not {"failedHash", "failure"} & status(history).keys()


def test_a_refused_candidate_is_tried_again_with_another_nonce() -> None:
    """`redeployNonce` asks for another try of the same spec, as after any failure."""
    history = refused_candidate()
    history.operator.events.clear()
    change(history, redeployNonce=7)
    history.settle()

    assert reasons(history).count("RolloutStarted") == 1
    assert reasons(history).count("RolloutFailed") == 1


@pytest.fixture
def refused_from_the_beginning() -> History:
    history = History.begin(7, replicas=2, standbyReplicas=0, transform={"sql": REFUSED})
    history.settle()
    return history


def test_a_first_revision_that_is_refused_has_failed(refused_from_the_beginning: History) -> None:
    """Phase, message, conditions and one event say why there is nothing to read."""
    history = refused_from_the_beginning

    assert status(history)["phase"] == "Failed"
    assert SENTENCE in status(history)["message"]
    assert condition(history, "SpecValid") == ("False", "TransformRefused")
    assert condition(history, "Progressing") == ("False", "TransformRefused")
    assert condition(history, "Available") == ("False", "Failed")
    assert condition(history, "Degraded") == ("True", "IngestFailed")
    assert reasons(history).count("TransformRefused") == 1


def test_a_first_revision_that_is_refused_recovers_with_its_spec(refused_from_the_beginning: History) -> None:
    """The corrected spec hydrates as a candidate, without a word of the old failure, and takes over."""
    history = refused_from_the_beginning
    change(history, transform={"sql": GOOD})
    for _ in range(5):
        history.run_pass()
        history.pass_time(1)
    assert condition(history, "SpecValid") == ("True", "Valid")
    assert SENTENCE not in status(history)["message"]
    history.settle()

    assert (status(history)["active"]["revision"], status(history)["phase"]) == ("r2", "Ready")
    assert condition(history, "Available") == ("True", "Serving")
    assert condition(history, "Degraded") == ("False", "AsWanted")


def test_an_operator_that_starts_anew_repeats_no_event(refused_from_the_beginning: History) -> None:
    """While no node has answered yet, what was known stays."""
    history = refused_from_the_beginning
    there = status(history)
    history.operator.events.clear()
    for node in history.cluster.nodes.values():
        node.answers = False
    history.operator._said.clear()
    for _ in range(3):
        history.run_pass()
        history.pass_time(1)
    assert status(history) == there
    for node in history.cluster.nodes.values():
        node.answers = True
    history.settle()

    assert (status(history), history.operator.events) == (there, [])


def kafka(**config: str) -> dict[str, object]:
    return {"bootstrapServers": "kafka:9092", "config": config}


def test_kafka_settings_that_are_refused_from_the_beginning_recover_by_a_roll() -> None:
    """They make no revision: pods are made anew, and the first revision is read after all."""
    history = History.begin(7, replicas=2, standbyReplicas=0, kafka=kafka(**REFUSED_SETTINGS))
    history.settle()
    assert (status(history)["phase"], condition(history, "SpecValid")) == (
        "Failed",
        ("False", "KafkaSettingsRefused"),
    )

    change(history, kafka=kafka())
    history.settle()

    assert (status(history)["phase"], status(history)["active"]["revision"]) == ("Ready", "r1")
    assert condition(history, "SpecValid") == ("True", "Valid")
    assert condition(history, "Degraded") == ("False", "AsWanted")


def test_refused_kafka_settings_stop_at_the_first_pod_of_a_view_that_serves() -> None:
    """The others read on with the settings that work; put right, all is as before."""
    history = settled()
    change(history, kafka=kafka(**REFUSED_SETTINGS))
    history.settle()
    refusing = [node for node in history.cluster.nodes.values() if node.spec["kafka"]["config"]]
    assert (len(refusing), condition(history, "Available")) == (1, ("True", "Serving"))
    assert condition(history, "SpecValid") == ("False", "KafkaSettingsRefused")
    assert "fetch.max.bytes" in status(history)["message"]

    change(history, kafka=kafka())
    history.settle()

    assert status(history)["message"] == "Everything is as the spec asks."
    assert reasons(history).count("KafkaSettingsRefused") == 1
