"""Test specs that nodes refuse permanently: Spark rejects the SQL, or Kafka's client rejects a setting."""

from __future__ import annotations

import pytest

from queryable_operator.report.conditions import conditions_by_type
from queryable_operator.rollout.pod import seconds_of
from tests.operator.histories.history import History
from tests.operator.histories.nodes import REFUSED, REFUSED_SETTINGS, SENTENCE
from tests.operator.histories.story import change, condition, reasons, settled, status

GOOD = "SELECT key FROM records"


def refused_candidate(on_failure: str = "DeleteCandidate") -> History:
    """Return a serving view whose nodes have refused a candidate that had an hour to hydrate."""
    history = settled()
    rollout = history.operator.resource["spec"]["rollout"]
    rollout = {**rollout, "hydrationDeadline": "1h", "onFailure": on_failure}
    change(history, transform={"sql": REFUSED}, rollout=rollout)
    history.settle()
    return history


@pytest.mark.parametrize("on_failure", ["DeleteCandidate", "KeepCandidate"])
def test_refused_candidate_is_dropped_at_once(on_failure: str) -> None:
    """A refused candidate is dropped long before its deadline; history and event contain the error with its position."""
    history = refused_candidate(on_failure)

    (failed,) = [entry for entry in status(history)["history"] if entry["outcome"] == "Failed"]
    assert (seconds_of(failed["until"]) or 0) - (seconds_of(failed["since"]) or 0) < 60
    assert failed["reason"] == SENTENCE
    (event,) = [event for event in history.operator.events if event.reason == "RolloutFailed"]
    assert (event.type, SENTENCE in event.message) == ("Warning", True)
    assert ("candidate" in status(history)) == (on_failure == "KeepCandidate")


def test_refusal_is_reported_while_the_old_revision_serves() -> None:
    """Message and conditions contain the refusal while the old revision serves."""
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
def test_corrected_spec_clears_the_refusal(right: dict[str, str] | None) -> None:
    """A corrected spec clears the refusal from conditions and message; the history retains it."""
    history = refused_candidate()
    history.operator.resource["spec"].pop("transform")
    change(history, **({"transform": right} if right else {}))
    history.settle()

    assert status(history)["active"]["revision"] == ("r3" if right else "r1")
    assert condition(history, "SpecValid") == ("True", "Valid")
    assert condition(history, "Degraded") == ("False", "AsWanted")
    assert status(history)["message"] == "Everything is as the spec asks."
    assert not {"failedHash", "failure"} & status(history).keys()


def test_refused_spec_is_tried_again_with_another_nonce() -> None:
    """Another `redeployNonce` starts one more rollout of a refused spec."""
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


def test_refused_first_revision_has_failed(refused_from_the_beginning: History) -> None:
    """A refused first revision is failed: phase, message, conditions and one event have the reason."""
    history = refused_from_the_beginning

    assert status(history)["phase"] == "Failed"
    assert SENTENCE in status(history)["message"]
    assert condition(history, "SpecValid") == ("False", "TransformRefused")
    assert condition(history, "Progressing") == ("False", "TransformRefused")
    assert condition(history, "Available") == ("False", "Failed")
    assert condition(history, "Degraded") == ("True", "IngestFailed")
    assert reasons(history).count("TransformRefused") == 1


def test_refused_first_revision_recovers_with_a_corrected_spec(refused_from_the_beginning: History) -> None:
    """A corrected spec replaces a refused first revision by a candidate that takes over."""
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


def test_restarted_operator_repeats_no_event(refused_from_the_beginning: History) -> None:
    """A restarted operator leaves the status of a refused revision unchanged and emits no event again."""
    history = refused_from_the_beginning
    there = status(history)
    history.operator.events.clear()
    for node in history.cluster.nodes.values():
        node.answers = False
    history.operator._last_statuses.clear()
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


def test_corrected_kafka_settings_restart_the_first_revisions_pods() -> None:
    """Corrected Kafka settings restart the pods of the first revision, which then hydrates."""
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


def test_refused_kafka_settings_stop_at_the_first_pod() -> None:
    """Refused Kafka settings reach one pod only; the others serve on, and corrected settings repair it."""
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
