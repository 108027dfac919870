"""Test what the operator reads from the pod of a rekey job."""

from __future__ import annotations

import json
from typing import Any

import pytest

from queryable_app.wire.ingest_failures import IngestFailure
from queryable_operator.rollout.pod import text_of
from queryable_operator.rollout.rekey_job import RekeyJob, rekey_job

NOW = 1_000_000.0
WAITING = {"waiting": {"reason": "CrashLoopBackOff"}}
RUNNING: dict[str, Any] = {"running": {}}


def ended(message: str | None = None, code: int = 1) -> dict[str, Any]:
    said = {} if message is None else {"message": message}
    return {"terminated": {"exitCode": code, "reason": "Error", **said}}


def checked(state: Any, last: Any) -> RekeyJob:
    """Return a job that has not started, whose check is in a state."""
    return job({"waiting": {"reason": "PodInitializing"}}, check={"state": state, "lastState": last})


def job(
    state: Any = WAITING, last: Any = None, ready_for: float | None = None, check: Any = None
) -> RekeyJob:
    """Return a job whose container is in a state, and has been ready for some seconds."""
    ready = {
        "type": "Ready",
        "status": "False" if ready_for is None else "True",
        "lastTransitionTime": text_of(NOW - (ready_for or 5)),
    }
    container = {"name": "rekey", "state": state, "lastState": last or {}}
    pod = {
        "metadata": {"name": "users-r1-rekey-0", "creationTimestamp": text_of(NOW - 100)},
        "status": {
            "conditions": [ready],
            "initContainerStatuses": [{"name": "check", **check}] if check else [],
            "containerStatuses": [container],
        },
    }
    return rekey_job(None, "users-r1-rekey-0", pod, NOW)


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ("first\nthe heap is full\n", "the heap is full"),
        ('{"event": "starting"}\n{"event": "failed", "reason": "no jars"}', "no jars"),
        ('{"event": "jvm-died", "code": 9}', "jvm-died"),
        ('["a list"]', '["a list"]'),
        ("", "Error, exit code 1"),
        (None, "Error, exit code 1"),
    ],
)
def test_end_of_the_log_is_the_problem(message: str | None, error: str) -> None:
    """The problem is the last line of the container's log, or what that line says in JSON, or else the exit code."""
    assert job(last=ended(message)).problem(NOW) == error


def test_permanent_failure_is_parsed() -> None:
    """A job that ends with a permanent failure as JSON names the reason for conditions."""
    failure = IngestFailure("TransformRefused", "spec.transform.sql: no such column")

    assert job(last=ended(json.dumps(failure.to_json()))).failure == failure
    assert job(last=ended("no such column")).failure is None


def test_running_job_has_no_problem() -> None:
    """A job that runs again has no problem, and after a minute its last error is forgotten."""
    assert job(RUNNING, ended("no"), ready_for=5).problem(NOW) is None
    assert job(RUNNING, ended("no"), ready_for=5).error == "no"
    assert job(RUNNING, ended("no"), ready_for=60).error is None


def test_normal_end_is_no_error() -> None:
    """A job that ended with exit code 0 did not fail."""
    assert job(RUNNING, ended("bye", code=0)).error is None


@pytest.mark.parametrize(
    ("state", "last", "found"),
    [
        (ended('{"groupKeyFormat": "long"}', code=0), {}, "long"),
        (ended('{"groupKeyFormat": "long"}', code=0), ended("no jars"), "long"),
        (RUNNING, ended('{"groupKeyFormat": "json"}', code=0), "json"),
        (ended('{"groupKeyFormat": "long"}', code=1), {}, None),
        (ended('{"groupKeyFormat": ""}', code=0), {}, None),
        (ended('{"groupKeyFormat": ["long"]}', code=0), {}, None),
        (ended('["long"]', code=0), {}, None),
        (ended(code=0), {}, None),
        (RUNNING, {}, None),
    ],
)
def test_format_of_group_keys_is_what_the_check_reported(state: Any, last: Any, found: str | None) -> None:
    """Only a check that accepted the view reports a format, in its last words."""
    assert checked(state, last).group_key_format == found


def test_check_that_fails_is_the_problem() -> None:
    """While the check fails, its refusal or the end of its log is the job's problem. After its success that is forgotten."""
    failure = IngestFailure("TransformRefused", "spec.transform.sql: no such column")
    refusing = checked(WAITING, ended(json.dumps(failure.to_json()), code=2))
    assert (refusing.failure, refusing.problem(NOW)) == (failure, failure.message)
    assert checked(WAITING, ended("the heap is full")).problem(NOW) == "the heap is full"
    assert checked(ended(code=0), ended("the heap is full")).error is None


def test_short_outage_is_no_problem() -> None:
    """A pod that is starting has no problem in its first minute, and one whose check is running in its first five."""
    end = ended('{"groupKeyFormat": "long"}', code=0)
    assert checked(end, {}).problem(NOW) is None
    assert checked(end, {}).problem(NOW + 60) == "its pod is not ready"
    assert checked(RUNNING, {}).problem(NOW + 240) is None
    assert checked(RUNNING, {}).problem(NOW + 300) == "its pod is not ready"
