"""Parse a QueryableTopic into frozen values, or raise an error that names the field.

The API server has validated it against the schema. This file checks what the schema cannot express: rules across fields, and
fields that this version does not implement.
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
from queryable_operator.spec.pods import PodLayout
from queryable_operator.spec.requirements import check_requirements
from queryable_operator.spec.workers import check_nodes

SPEC_CHARACTERS_MAX: Final = 300_000
"""A revision's ConfigMap of at most 1 MiB contains the spec up to three times: as it is, and in the pod templates of the nodes
and of the rekey job."""

_SECONDS_MAX: Final = 3650 * 86_400  # a longer duration could overflow a time


@dataclass(frozen=True, slots=True)
class Identity:
    """Identify a resource, also one whose spec is invalid."""

    namespace: str
    name: str
    uid: str
    generation: int
    deleting: bool

    @property
    def owner(self) -> Mapping[str, Any]:
        """Return the owner reference of every child."""
        return {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "name": self.name,
            "uid": self.uid,
            "controller": True,
        }


@dataclass(frozen=True, slots=True)
class Rollout:
    hydration_deadline_seconds: float
    max_lag: int
    stable_seconds: float
    on_failure: Literal["DeleteCandidate", "KeepCandidate"]


@dataclass(frozen=True, slots=True)
class View(Identity):
    """Describe what a resource asks for."""

    raw: Mapping[str, Any]
    """`spec`, with the schema's defaults filled in."""

    spec: TopicSpec
    rollout: Rollout
    replace_after_seconds: float
    on_partitions_changed: Literal["Redeploy", "Alert"]
    paused: bool
    suspended: bool
    image: str | None
    """None: the image that the revision was made with, or the operator's default for a new revision."""

    def following(self, spec: Mapping[str, Any]) -> View:
        """Return this resource with another spec, that of an earlier revision."""
        return _view(self, spec)


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
    """Parse a resource. Raises SpecError; its message begins with the path of the field."""
    return _view(identity_of(resource), resource["spec"])


def _view(identity: Identity, given: Mapping[str, Any]) -> View:
    size = len(json.dumps(given))
    if size > SPEC_CHARACTERS_MAX:
        raise SpecError(f"spec: {size} characters as JSON, and the limit is {SPEC_CHARACTERS_MAX}")
    raw = with_defaults(given)
    spec = parse_spec(raw)
    _check_kafka(raw["kafka"])
    check_nodes(spec.replicas, PodLayout.of(raw))
    check_requirements(raw)
    rollout = raw["rollout"]
    if rollout["promotion"] != "Automatic":  # an earlier CRD accepted another value
        raise SpecError("spec.rollout.promotion: only Automatic is supported; leave the field out")
    return View(
        namespace=identity.namespace,
        name=identity.name,
        uid=identity.uid,
        generation=identity.generation,
        deleting=identity.deleting,
        raw=raw,
        spec=spec,
        rollout=Rollout(
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
    """Check the Kafka settings, if no Secret can complete them."""
    try:
        refuse_paths(kafka["config"])
        if "secretRef" not in kafka:
            kafka_connection(kafka["bootstrapServers"], kafka["config"])
    except KafkaSettingsError as e:
        raise SpecError(f"spec.kafka.config: {e}") from None
