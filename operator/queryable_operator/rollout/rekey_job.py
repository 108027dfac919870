"""Describe the live rekey job of a revision: its StatefulSet, its pod, and why it last ended with an error."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from queryable_app.config.rekey import GroupKeyFormat
from queryable_app.wire.check_report import reported_format
from queryable_app.wire.ingest_failures import IngestFailure, one_line, parse_failure
from queryable_operator.rollout.pod import Pod, pod_of
from queryable_operator.spec.observed import Manifest

_STEADY_SECONDS: Final = 60.0  # a job that has run for so long has outlived its last error
_NOT_READY_SECONDS: Final = 60.0  # a shorter outage is a restart
_CHECK_SECONDS: Final = (
    300.0  # the same before the first start, for the image to arrive and Spark to check the view
)
_CHARACTERS_MAX: Final = 500


@dataclass(frozen=True, slots=True)
class RekeyJob:
    stateful_set: Manifest | None = None
    pod: Pod | None = None
    error: str | None = None
    """What the job's container last said when it ended with an error. None: it never did, or has run for a while since."""

    failure: IngestFailure | None = None
    """The same, if the job named a permanent failure."""

    group_key_format: GroupKeyFormat | None = None
    """The format of group keys, as the check reported it before the job started."""

    def problem(self, now: float) -> str | None:
        """Return why the job does not run, or None if it runs or may be starting."""
        pod = self.pod
        if pod is None or pod.ready:
            return None
        enough = _CHECK_SECONDS if self.group_key_format is None else _NOT_READY_SECONDS
        if pod.problem is not None or now - pod.changed >= enough:
            return self.error or pod.problem or "its pod is not ready"
        return None


NO_REKEY_JOB: Final = RekeyJob()


def rekey_job(
    stateful_set: Manifest | None, pod_name: str, live_pod: Manifest | None, now: float
) -> RekeyJob:
    """Parse the live objects of a job. Either may be missing."""
    if live_pod is None:
        return RekeyJob(stateful_set)
    pod, key_format = pod_of(pod_name, live_pod, {}), _reported_format(live_pod)
    steady = pod.ready and now - pod.changed >= _STEADY_SECONDS
    ended = None if steady else _last_error(live_pod)
    if ended is None:
        return RekeyJob(stateful_set, pod, group_key_format=key_format)
    message = ended.get("message")
    lines = [line for line in message.splitlines() if line.strip()] if isinstance(message, str) else []
    last = _parsed(lines[-1]) if lines else None
    return RekeyJob(stateful_set, pod, _text(ended, lines, last), parse_failure(last), key_format)


def _reported_format(pod: Manifest) -> GroupKeyFormat | None:
    for ended in _ends(pod, "initContainerStatuses"):
        if ended.get("exitCode") == 0 and (found := reported_format(_parsed(str(ended.get("message"))))):
            return found
    return None


def _last_error(pod: Manifest) -> Mapping[str, Any] | None:
    """Return how the check last ended, or else the job, if it was an error."""
    checked = list(_ends(pod, "initContainerStatuses"))
    if checked and checked[0].get("exitCode") == 0:
        checked = []  # what it said before does not matter
    for ended in (*checked, *_ends(pod, "containerStatuses")):
        if ended.get("exitCode") != 0:
            return ended
    return None


def _ends(pod: Manifest, statuses: str) -> Iterator[Mapping[str, Any]]:
    """Yield how containers ended, the newest end of each first."""
    for container in pod.get("status", {}).get(statuses) or ():
        for state in (container.get("state"), container.get("lastState")):
            ended = (state or {}).get("terminated")
            if ended:
                yield dict(ended)


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _text(ended: Mapping[str, Any], lines: list[str], last: Any) -> str:
    """Return the end as a sentence: what a log line or a failure says, or else the container runtime's reason."""
    said: Any = None
    if isinstance(last, Mapping):
        said = last.get("message") or last.get("reason") or last.get("event")
    elif lines:
        said = lines[-1]
    if not isinstance(said, str):
        said = f"{ended.get('reason') or 'Error'}, exit code {ended.get('exitCode')}"
    return one_line(said)[:_CHARACTERS_MAX]
