"""Parse a live pod, whose status may be missing or invalid, and the times of live objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from queryable_operator.spec.observed import Manifest

_TEMPLATE_LABEL: Final = "controller-revision-hash"
# the kubelet alternates between two reasons for one cause; report one of them
_PROBLEMS: Final = {
    "CrashLoopBackOff": "CrashLoopBackOff",
    "CreateContainerConfigError": "CreateContainerConfigError",
    "ErrImagePull": "ImagePullBackOff",
    "ImagePullBackOff": "ImagePullBackOff",
    "InvalidImageName": "InvalidImageName",
}


@dataclass(frozen=True, slots=True)
class Pod:
    """Describe one pod: a node, or several."""

    name: str
    ready: bool
    changed: float
    """When it last became ready or unready; its creation if it never was ready."""

    created: float
    host: str | None
    template: str | None
    """The StatefulSet's name for the template that the pod was created from."""

    termination_deadline: float | None
    """When its graceful termination ends, if it was deleted."""

    volume_is_unreachable: bool = False
    """Whether no host can run it because of its volume's location."""

    problem: str | None = None
    """What keeps it from running, in a few words."""


def seconds_of(text: Any) -> float | None:
    """Parse a Kubernetes time. Return None if the text is none."""
    try:
        moment = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def text_of(seconds: float) -> str:
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def labels(manifest: Manifest) -> Mapping[str, Any]:
    return manifest.get("metadata", {}).get("labels") or {}


def condition(manifest: Manifest, kind: str) -> Mapping[str, Any]:
    for one in manifest.get("status", {}).get("conditions") or ():
        if one.get("type") == kind:
            return dict(one)
    return {}


def pod_of(name: str, manifest: Manifest, claim: Manifest) -> Pod:
    metadata, ready_condition = manifest.get("metadata", {}), condition(manifest, "Ready")
    ending = seconds_of(metadata.get("deletionTimestamp"))
    created = seconds_of(metadata.get("creationTimestamp")) or 0.0
    ready, changed = (
        ready_condition.get("status") == "True",
        seconds_of(ready_condition.get("lastTransitionTime")),
    )
    if ready and ending is not None:  # deletion makes a pod unready at once
        ready, changed = False, ending - _grace_seconds(metadata)
    scheduling_problem = _scheduling_problem(manifest)
    return Pod(
        name=name,
        ready=ready,
        changed=changed or created,
        created=created,
        host=manifest.get("spec", {}).get("nodeName"),
        template=labels(manifest).get(_TEMPLATE_LABEL),
        termination_deadline=ending,
        volume_is_unreachable=_is_bound(claim) and "volume" in scheduling_problem.lower(),
        problem=scheduling_problem or _container_problem(manifest),
    )


def _grace_seconds(metadata: Mapping[str, Any]) -> int:
    """Return the grace period of a pod's deletion."""
    seconds = metadata.get("deletionGracePeriodSeconds")
    return seconds if isinstance(seconds, int) else 0


def _scheduling_problem(manifest: Manifest) -> str:
    """Return why no host runs the pod, or an empty text."""
    scheduled = condition(manifest, "PodScheduled")
    return str(scheduled.get("message", "")) if scheduled.get("status") == "False" else ""


def _is_bound(claim: Manifest) -> bool:
    """Return whether the claim is bound. An unbound claim does not restrict where a pod runs."""
    return claim.get("status", {}).get("phase") in ("Bound", "Lost")


def _container_problem(manifest: Manifest) -> str | None:
    """Return why the pod's containers wait, if it is a known problem."""
    status = manifest.get("status", {})
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        reason = (container.get("state") or {}).get("waiting", {}).get("reason")
        if reason in _PROBLEMS:
            return _PROBLEMS[reason]
    return None
