"""A QueryableTopic, as the API server gives it, as frozen values; or an error that names the field.

The API server has held it against the schema. What is left is what the schema can not say: rules that cross fields, and
what this version does not carry out yet.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from queryable_app.config.kafka_settings import KafkaSettingsError, kafka_connection, refuse_paths
from queryable_app.config.topic_spec import SpecError, TopicSpec, duration_ms, parse_spec
from queryable_operator.spec import names
from queryable_operator.spec.defaults import with_defaults
from queryable_operator.spec.observed import Manifest
from queryable_operator.spec.requirements import check_requirements

SPEC_CHARACTERS_MAX: Final = 300_000
"""A revision's ConfigMap holds the spec twice, in one MiB: as it is, and as a pod template."""

_SECONDS_MAX: Final = 3650 * 86_400  # what is added to a time must stay one


@dataclass(frozen=True, slots=True)
class Identity:
    """Which resource it is. Also of one whose spec is wrong."""

    namespace: str
    name: str
    uid: str
    generation: int
    deleting: bool

    @property
    def owner(self) -> Mapping[str, Any]:
        """The owner reference of every child."""
        return {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "name": self.name,
            "uid": self.uid,
            "controller": True,
        }


@dataclass(frozen=True, slots=True)
class Rollout:
    promotion: Literal["Automatic", "Manual"]
    hydration_deadline_seconds: float
    max_lag: int
    stable_seconds: float
    on_failure: Literal["DeleteCandidate", "KeepCandidate"]


@dataclass(frozen=True, slots=True)
class View(Identity):
    """What one resource asks for."""

    annotations: Mapping[str, str]
    raw: Mapping[str, Any]
    """`spec`, with the schema's defaults filled in."""

    spec: TopicSpec
    rollout: Rollout
    replace_after_seconds: float
    on_partitions_changed: Literal["Redeploy", "Alert"]
    paused: bool
    suspended: bool
    image: str | None
    """None: the one that the revision was made with, or the operator's own for a new one."""

    def following(self, spec: Mapping[str, Any]) -> View:
        """The same resource with another spec: that of a revision which was made earlier."""
        return _view(self, self.annotations, spec)


def identity_of(resource: Manifest) -> Identity:
    metadata = resource["metadata"]
    return Identity(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        generation=metadata.get("generation", 1),
        deleting="deletionTimestamp" in metadata,
    )


def view_of(resource: Manifest) -> View:
    """Raises SpecError, whose message begins with the path of the field."""
    annotations = resource["metadata"].get("annotations", {})
    return _view(identity_of(resource), annotations, resource["spec"])


def _view(identity: Identity, annotations: Mapping[str, str], given: Mapping[str, Any]) -> View:
    size = len(json.dumps(given))
    if size > SPEC_CHARACTERS_MAX:
        raise SpecError(f"spec: {size} characters as JSON, and at most {SPEC_CHARACTERS_MAX} fit the nodes")
    raw = with_defaults(given)
    spec = parse_spec(raw)
    _check_kafka(raw["kafka"])
    check_requirements(raw)
    rollout = raw["rollout"]
    if rollout["promotion"] == "Manual":
        raise SpecError("spec.rollout.promotion: Manual is not in this version yet; leave the field out")
    return View(
        namespace=identity.namespace,
        name=identity.name,
        uid=identity.uid,
        generation=identity.generation,
        deleting=identity.deleting,
        annotations=annotations,
        raw=raw,
        spec=spec,
        rollout=Rollout(
            promotion=rollout["promotion"],
            hydration_deadline_seconds=_seconds(
                rollout["hydrationDeadline"], "spec.rollout.hydrationDeadline"
            ),
            max_lag=rollout["maxLag"],
            stable_seconds=_seconds(rollout["stable"], "spec.rollout.stable"),
            on_failure=rollout["onFailure"],
        ),
        replace_after_seconds=_seconds(raw["replaceAfter"], "spec.replaceAfter"),
        on_partitions_changed=raw["onPartitionsChanged"],
        paused=raw["paused"],
        suspended=raw["suspended"],
        image=raw.get("image"),
    )


def _seconds(duration: str, path: str) -> float:
    seconds = duration_ms(duration, path) / 1000
    if seconds > _SECONDS_MAX:
        raise SpecError(f"{path}: {duration} is more than ten years")
    return seconds


def _check_kafka(kafka: Mapping[str, Any]) -> None:
    """With a Secret, what is missing here may stand there."""
    try:
        refuse_paths(kafka["config"])
        if "secretRef" not in kafka:
            kafka_connection(kafka["bootstrapServers"], kafka["config"])
    except KafkaSettingsError as e:
        raise SpecError(f"spec.kafka.config: {e}") from None
