"""Group the live objects of one resource by revision. Any of them may be missing or invalid.

An invalid object counts as missing: an edited ConfigMap, an unparsable time, a pod with a name that is no node's. Readers of
these values therefore never meet invalid data.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from queryable_operator.build.settings_map import RevisionRecord, record_of
from queryable_operator.rollout.executors import NO_EXECUTORS, Executors, executors_of
from queryable_operator.rollout.pod import Pod, pod_of
from queryable_operator.rollout.rekey_job import NO_REKEY_JOB, RekeyJob, rekey_job
from queryable_operator.spec import names
from queryable_operator.spec.observed import Manifest, NodeStatus, Observed, Ref
from queryable_operator.spec.pods import PodIndex, PodLayout
from queryable_operator.spec.rekeying import is_rekeyed

_ORDINAL: Final = re.compile(r"-(0|[1-9][0-9]{0,3})$")
BUILD_INPUTS_ANNOTATION: Final = f"{names.GROUP}/made-of"
"""On the StatefulSet: the revision's `BuildInputs`, from which a deleted ConfigMap is recovered after the spec has changed."""

_JOB_NAMES: Final = (
    (("Pod", "StatefulSet", "Service"), names.revision_of_rekey_job),
    (("Pod", "StatefulSet"), names.revision_of_executors),
)
_CLAIM: Final = "PersistentVolumeClaim"
_CLAIM_PREFIX: Final = names.volume_claim("", 1, 0).partition("-")[0]


@dataclass(frozen=True, slots=True)
class BuildInputs:
    spec: Mapping[str, Any]
    """Only the fields that make a revision."""

    spec_hash: str
    partitions: int
    disk_format: int

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @staticmethod
    def from_json(text: str) -> BuildInputs:
        return BuildInputs(**json.loads(text))


@dataclass(frozen=True, slots=True)
class LiveRevision:
    """Describe the live objects of one revision."""

    number: int
    objects: Mapping[str, Manifest] = field(default_factory=dict)
    """By kind, for kinds of which a revision has one object."""

    pods: Mapping[PodIndex, Pod] = field(default_factory=dict)
    claims: Mapping[PodIndex, Manifest] = field(default_factory=dict)
    node_statuses: Mapping[int, NodeStatus] = field(default_factory=dict)
    """By ordinal."""

    record: RevisionRecord | None = None
    """Parsed from its ConfigMap."""

    build_inputs: BuildInputs | None = None
    """Parsed from its StatefulSet. Compare it with a hash before use: a user may have edited it."""

    rekey_job: RekeyJob = NO_REKEY_JOB
    executors: Executors = NO_EXECUTORS

    @property
    def recorded_spec(self) -> Mapping[str, Any] | None:
        """Return the fields that the revision was made with, as far as known."""
        if self.record is not None:
            return self.record.spec
        return None if self.build_inputs is None else self.build_inputs.spec

    @property
    def layout(self) -> PodLayout:
        return PodLayout.of(self.recorded_spec or {})

    @property
    def ready(self) -> frozenset[PodIndex]:
        return frozenset(index for index, pod in self.pods.items() if pod.ready)

    @property
    def ready_nodes(self) -> frozenset[int]:
        return self.layout.nodes_in(self.ready)

    @property
    def nodes(self) -> frozenset[int]:
        """Return the ordinals of the nodes in all pods."""
        return self.layout.nodes_in(self.pods)

    @property
    def all_pods(self) -> tuple[Pod, ...]:
        """Return the pods of the nodes, that of the rekey job, and those of its executors."""
        job = self.rekey_job.pod
        return (*self.pods.values(), *(() if job is None else (job,)), *self.executors.pods)

    @property
    def config_map_uid(self) -> str:
        """Return what identifies the revision among those that had its number, or an empty text."""
        return str(self.objects.get("ConfigMap", {}).get("metadata", {}).get("uid", ""))

    @property
    def is_rekeyed(self) -> bool:
        """Return whether the revision has a rekey job, as far as known."""
        return is_rekeyed(self.recorded_spec or {}) or self.rekey_job != NO_REKEY_JOB

    def title(self, ordinal: int) -> str:
        """Return how messages name a node."""
        pod = self.pods.get(self.layout.pod_of(ordinal))
        return self.layout.title(ordinal, pod.name if pod else "a pod that has gone")

    @property
    def replicas(self) -> int:
        """Return the replicas of the live StatefulSet."""
        replicas = self.objects.get("StatefulSet", {}).get("spec", {}).get("replicas")
        return replicas if isinstance(replicas, int) else 0


def revisions_of(observed: Observed) -> Mapping[int, LiveRevision]:
    """Return every revision with at least one object. Names decide, since labels can be edited."""
    view = str(observed.resource["metadata"]["name"])
    by_revision: dict[int, dict[Ref, Manifest]] = {}
    for ref, manifest in observed.children.items():
        number = _revision_of(view, ref)
        if number is not None:
            by_revision.setdefault(number, {})[ref] = manifest
    return {
        number: _live(view, number, objects, observed.node_statuses.get(number, {}), observed.now)
        for number, objects in by_revision.items()
    }


def layout_of(view: str, number: int, objects: Mapping[Ref, Manifest]) -> PodLayout:
    """Return how the nodes of a revision are divided into pods, from all objects of the resource."""
    name = names.child(view, number)
    stateful_set = objects.get(Ref("StatefulSet", name), {})
    record = _record(objects.get(Ref("ConfigMap", name)))
    return LiveRevision(number, record=record, build_inputs=_made_of(stateful_set)).layout


def _revision_of(view: str, ref: Ref) -> int | None:
    name = ref.name.removeprefix(f"{_CLAIM_PREFIX}-") if ref.kind == _CLAIM else ref.name
    if ref.kind in (_CLAIM, "Pod"):
        name = _ORDINAL.sub("", name)
    for kinds, revision_of in _JOB_NAMES:
        if ref.kind in kinds and (number := revision_of(view, name)) is not None:
            return number
    prefix, _, revision = name.rpartition("-")
    return names.revision_number(revision) if prefix == view else None


def _live(
    view: str,
    number: int,
    objects: Mapping[Ref, Manifest],
    node_statuses: Mapping[int, NodeStatus],
    now: float,
) -> LiveRevision:
    pods, claims, single = {}, {}, {}
    of_job = (Ref("StatefulSet", names.rekey_job(view, number)), Ref("Pod", names.rekey_pod(view, number)))
    executors, of_executors = executors_of(view, number, objects)
    for ref, manifest in objects.items():
        if ref in of_job or ref in of_executors:
            continue
        match = _ORDINAL.search(ref.name)
        if ref.kind not in (_CLAIM, "Pod"):
            single[ref.kind] = manifest
        elif match and ref.kind == "Pod":
            claim = objects.get(Ref(_CLAIM, f"{_CLAIM_PREFIX}-{ref.name}"), {})
            pods[PodIndex(int(match[1]))] = pod_of(ref.name, manifest, claim)
        elif match:
            claims[PodIndex(int(match[1]))] = manifest
    record, build_inputs = _record(single.get("ConfigMap")), _made_of(single.get("StatefulSet", {}))
    job = rekey_job(objects.get(of_job[0]), of_job[1].name, objects.get(of_job[1]), now)
    return LiveRevision(number, single, pods, claims, node_statuses, record, build_inputs, job, executors)


def _record(config_map: Manifest | None) -> RevisionRecord | None:
    try:
        return None if config_map is None else record_of(config_map)
    except (KeyError, ValueError):
        return None


def _made_of(stateful_set: Manifest) -> BuildInputs | None:
    try:
        build_inputs = BuildInputs.from_json(stateful_set["metadata"]["annotations"][BUILD_INPUTS_ANNOTATION])
    except (KeyError, TypeError, ValueError):
        return None
    sound = isinstance(build_inputs.spec, dict) and isinstance(build_inputs.spec_hash, str)
    return build_inputs if sound and isinstance(build_inputs.partitions, int) else None
