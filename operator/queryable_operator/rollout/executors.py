"""Describe the live executors of a revision's rekey job: their StatefulSet, their pods, and the Service of the job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from queryable_operator.rollout.pod import Pod, pod_of
from queryable_operator.spec import names
from queryable_operator.spec.observed import Manifest, Ref

_NOT_READY_SECONDS: Final = 120.0  # a shorter outage is a restart


@dataclass(frozen=True, slots=True)
class Executors:
    stateful_set: Manifest | None = None
    service: Manifest | None = None
    pods: tuple[Pod, ...] = ()

    def problem(self, now: float) -> str | None:
        """Return why an executor does not run, or None if all run or may be starting."""
        for pod in self.pods:
            if not pod.ready and (pod.problem is not None or now - pod.changed >= _NOT_READY_SECONDS):
                return f"its executor {pod.name}: {pod.problem or 'the pod is not ready'}"
        return None


NO_EXECUTORS: Final = Executors()


def executors_of(view: str, number: int, objects: Mapping[Ref, Manifest]) -> tuple[Executors, frozenset[Ref]]:
    """Parse the live objects of the executors among those of a revision. Return them, and which objects they are."""
    stateful_set = Ref("StatefulSet", names.executors(view, number))
    service = Ref("Service", names.rekey_job(view, number))
    pods = [
        ref
        for ref in objects
        if ref.kind == "Pod" and names.revision_of_executors(view, ref.name.rpartition("-")[0]) == number
    ]
    found = Executors(
        objects.get(stateful_set),
        objects.get(service),
        tuple(pod_of(ref.name, objects[ref], {}) for ref in sorted(pods, key=lambda ref: ref.name)),
    )
    return found, frozenset((stateful_set, service, *pods))
