"""Test the message of a resource, and which reports make a failure permanent."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from queryable_app.wire.ingest_failures import REASONS, IngestFailure, parse_failure
from queryable_operator.decide.plan import plan
from queryable_operator.report.condition_rules import worst_message
from queryable_operator.rollout.live_revision import LiveRevision
from queryable_operator.rollout.pod import Pod
from queryable_operator.rollout.progress import permanent_failure
from queryable_operator.spec.observed import Observed
from queryable_operator.spec.pods import PodIndex
from tests.operator.decide.test_plan import changed, condition, standing, with_node_status
from tests.operator.decide.test_plan_pods import not_ready
from tests.operator.histories.history import History
from tests.operator.histories.nodes import NEVER
from tests.operator.histories.operator import SETTINGS

REFUSED = IngestFailure("TransformRefused", "spec.transform.sql: line 1 pos 7")
CLASS = IngestFailure("ClassMissing", "the JVM lacks a class")


def message(observed: Observed) -> str:
    status = plan(observed, SETTINGS).status or observed.resource["status"]
    return str(status["message"])


def entry(kind: str, status: str, reason: str) -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "message": f"{kind} {reason}"}


# The worst first, as in docs/operator_status.md.
ORDERED = [
    entry("Available", "False", "NodesAway"),
    entry("Degraded", "True", "CopyFailed"),
    entry("Degraded", "True", "IngestFailed"),
    entry("PartitionerMatches", "False", "PartitionerMismatch"),
    entry("SpecValid", "False", "TransformRefused"),
    entry("Degraded", "True", "RolloutFailed"),
    entry("PartitionsInSync", "False", "PartitionsChanged"),
    entry("Progressing", "True", "MovingCopies"),
]


@pytest.mark.parametrize("worse", range(len(ORDERED) - 1))
def test_message_is_the_worst_condition(worse: int) -> None:
    """Less severe conditions and healthy ones do not show."""
    kinds = {ORDERED[worse]["type"]}
    beside = [one for one in ORDERED[worse + 1 :] if one["type"] not in kinds]
    well = [entry("Available", "True", "Serving"), entry("SpecValid", "True", "Valid")]
    others = [one for one in well if one["type"] not in {two["type"] for two in (*beside, ORDERED[worse])}]

    assert worst_message([*others, *reversed(beside), ORDERED[worse]]) == ORDERED[worse]["message"]


def test_edited_condition_gives_no_message() -> None:
    """A carried-over condition may have been edited in status."""
    broken: list[dict[str, Any]] = [
        {"type": "SpecValid"},
        {"type": "Degraded", "status": "True"},
        {"type": "Progressing"},
    ]

    assert worst_message(broken) == ""
    assert worst_message([*broken, entry("PartitionsInSync", "False", "X")]) == "PartitionsInSync X"


def test_message_is_one_line() -> None:
    """kubectl cuts a column off at the first line end."""
    assert (
        worst_message([{**entry("SpecValid", "False", "X"), "message": "a\n b\n\n== SQL ==\nSELEC"}]) == "a b"
    )


def test_unavailable_nodes_outrank_an_invalid_spec() -> None:
    """An invalid spec leaves readers what they have."""
    observed = changed(standing(), replicas=1)  # with standbyReplicas: 1
    assert message(observed).startswith("spec.standbyReplicas")
    for ordinal in range(3):
        observed = not_ready(observed, ordinal)

    assert message(observed).startswith("Not every partition of r1 has a complete replica")


def test_refusal_by_serving_nodes_makes_the_spec_invalid() -> None:
    """Changed Kafka settings restart one pod after the other, and the first one reports the refusal."""
    settings = IngestFailure("KafkaSettingsRefused", "spec.kafka: a setting is wrong")
    planned = plan(with_node_status(standing(), 1, failure=settings, ingest_error=settings.message), SETTINGS)

    assert condition(planned, "SpecValid") == ("False", "KafkaSettingsRefused", settings.message)
    assert condition(planned, "Degraded")[:2] == ("True", "IngestFailed")
    assert condition(planned, "Available")[0] == "True"
    assert [event.reason for event in planned.events] == ["KafkaSettingsRefused"]


def test_report_of_the_rekey_job_is_a_problem() -> None:
    """A rekey job that runs and cannot continue says so to the nodes, and the view is degraded with its sentence."""
    planned = plan(with_node_status(standing(), 1, rekey_error="records 3 to 9 are gone"), SETTINGS)

    assert condition(planned, "Degraded") == (
        "True",
        "RekeyJobFailed",
        "The rekey job of r1 cannot continue: records 3 to 9 are gone",
    )
    assert [event.reason for event in planned.events] == ["RekeyJobFailed"]


def test_temporary_failure_of_a_candidate_is_reported() -> None:
    """The candidate's deadline may be hours away."""
    history = History.begin(3, replicas=1, standbyReplicas=0)
    history.settle()
    history.operator.resource["spec"]["transform"] = {"sql": NEVER}
    history.changed()
    for _ in range(20):
        history.run_pass()
        history.pass_time(1)
    observed = history.operator.observe()
    nodes = {n: replace(one, ingest_error="no topic") for n, one in observed.node_statuses[2].items()}
    planned = plan(replace(observed, node_statuses={**observed.node_statuses, 2: nodes}), SETTINGS)

    assert planned.status is not None
    assert planned.status["message"].startswith("r2 hydrates: 0 of ")
    assert planned.status["message"].endswith("Ingest of node 0 has failed: no topic")


def live(**failures: IngestFailure | None) -> LiveRevision:
    """Return a revision of three pods; `n0=` is the report of node 0."""
    pods = {PodIndex(n): Pod(f"users-r1-{n}", False, 0, 0, "host", "template", None) for n in range(3)}
    one = standing().node_statuses[1][0]
    spoken = {int(name[1:]): replace(one, failure=failure) for name, failure in failures.items()}
    return LiveRevision(1, {"StatefulSet": {"spec": {"replicas": 3}}}, pods, node_statuses=spoken)


@pytest.mark.parametrize(
    ("failures", "verdict"),
    [
        ({"n0": None, "n1": None, "n2": None}, None),
        ({"n0": None, "n2": REFUSED}, REFUSED),
        ({"n0": CLASS, "n1": CLASS}, None),
        ({"n0": CLASS, "n1": CLASS, "n2": None}, None),
        ({"n0": CLASS, "n1": CLASS, "n2": CLASS}, CLASS),
        ({"n0": CLASS, "n2": REFUSED}, REFUSED),
        ({"n1": IngestFailure("WhatANewerNodeSays", "…")}, None),
    ],
)
def test_spec_fails_by_one_node_and_an_image_by_all(failures: Any, verdict: IngestFailure | None) -> None:
    """Every node reads SQL in the same way, but another node may run what this one cannot."""
    assert permanent_failure(live(**failures)) == verdict


@pytest.mark.parametrize(
    "raw",
    [None, "x", [], {}, {"reason": "A"}, {"reason": "no word", "message": ""}, {"reason": 1, "message": "x"}],
)
def test_malformed_failure_is_none(raw: Any) -> None:
    """A node of another version, or another server, may send anything."""
    assert parse_failure(raw) is None


def test_failure_survives_its_encoding() -> None:
    """Every reason is decoded again, on one line and bounded."""
    for reason in REASONS:
        assert parse_failure(IngestFailure(reason, "why").to_json()) == IngestFailure(reason, "why")
    long = parse_failure({"reason": "TransformRefused", "message": "x\n" * 9_000})
    assert long is not None
    assert (len(long.message), "\n" in long.message) == (2000, False)
