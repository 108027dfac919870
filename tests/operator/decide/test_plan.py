"""Test the plan in single situations: a settled view with one change."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from queryable_app.local.resource_file import crd
from queryable_operator.decide.actions import Plan
from queryable_operator.decide.drift import difference
from queryable_operator.decide.plan import plan
from queryable_operator.report.conditions import conditions_by_type
from queryable_operator.rollout.pod import text_of
from queryable_operator.spec import names
from queryable_operator.spec.observed import (
    KafkaSettingsInvalid,
    KafkaUnreachable,
    Manifest,
    Observed,
    Ref,
    TopicFound,
    TopicMissing,
)
from queryable_operator.spec.settings import OperatorSettings
from tests.operator.histories.history import History, resource
from tests.operator.histories.operator import SETTINGS

CONFIG_MAP, STATEFUL_SET = Ref("ConfigMap", "users-r1"), Ref("StatefulSet", "users-r1")


@cache
def standing(standbys: int = 1) -> Observed:
    """Return a settled view of three nodes, with two replicas of each partition by default."""
    history = History.begin(3, replicas=3, standbyReplicas=standbys)
    history.settle()
    return history.operator.observe()


def changed(observed: Observed, **spec: Any) -> Observed:
    there = copy.deepcopy(dict(observed.resource))
    there["spec"].update(spec)
    there["metadata"]["generation"] += 1
    return replace(observed, resource=there)


def edited(observed: Observed, ref: Ref, edit: Callable[[Any], None]) -> Observed:
    live = copy.deepcopy(dict(observed.children[ref]))
    edit(live)
    return replace(observed, children={**observed.children, ref: live})


def writes(planned: Plan, observed: Observed) -> dict[Ref, Manifest]:
    """Return the applied objects that differ from the live ones."""
    refs = {Ref(m["kind"], m["metadata"]["name"]): m for m in planned.apply}
    return {ref: m for ref, m in refs.items() if difference(m, observed.children.get(ref, {})) is not None}


def condition(planned: Plan, kind: str) -> tuple[str, str, str]:
    assert planned.status is not None
    entry = conditions_by_type(planned.status)[kind]
    return entry["status"], entry["reason"], entry["message"]


def test_settled_view_needs_no_action() -> None:
    """A settled view has no write, no node update and no status, and its next pass comes in ten seconds."""
    planned = plan(standing(), SETTINGS)

    assert not writes(planned, standing())
    assert planned == Plan(apply=planned.apply, expect_unchanged=planned.expect_unchanged)


def test_operator_upgrade_restarts_no_pods() -> None:
    """The new default image is for new revisions."""
    planned = plan(standing(), OperatorSettings("example/node:2"))

    assert not writes(planned, standing())


# --- the first revision


def beginning(topic: Any) -> Observed:
    return Observed(now=1_000_000.0, resource=resource(), children={}, topic=topic)


def test_first_revision_enters_status_before_its_objects() -> None:
    """The first revision enters status first, so that the next pass can assign its children."""
    planned = plan(beginning(TopicFound(4)), SETTINGS)

    assert (planned.apply, planned.token_secrets) == ((), ())
    assert planned.status is not None
    assert (planned.status["phase"], planned.status["active"]["revision"]) == ("Provisioning", "r1")


@pytest.mark.parametrize(
    ("topic", "reason", "events"),
    [
        (None, "LookingForTopic", []),
        (TopicMissing(), "TopicNotFound", ["TopicNotFound"]),
        (KafkaUnreachable("no answer"), "KafkaAway", []),
        (KafkaSettingsInvalid("the Secret kafka does not exist"), "SettingsWrong", []),
    ],
)
def test_nothing_is_created_before_the_topic_is_observed(topic: Any, reason: str, events: list[str]) -> None:
    """The phase is Pending, Progressing has the reason, and one event reports it."""
    first = plan(beginning(topic), SETTINGS)
    assert first.status is not None
    again = plan(
        replace(beginning(topic), resource={**resource(), "status": first.status}, now=1_000_600.0), SETTINGS
    )

    assert first.status["phase"] == "Pending"
    assert condition(first, "Progressing")[:2] == ("False", reason)
    assert [event.reason for event in first.events] == events
    assert (again.status, again.events) == (None, ())


# --- the spec


def test_invalid_spec_leaves_the_last_valid_one_in_effect() -> None:
    """The status names the field, also if the invalid spec has other replicas."""
    observed = changed(standing(), replicas=1, suspended=True)
    planned = plan(observed, SETTINGS)

    assert condition(planned, "SpecValid")[:2] == ("False", "SpecInvalid")
    assert condition(planned, "SpecValid")[2].startswith("spec.standbyReplicas")
    assert not writes(planned, observed)
    assert [event.reason for event in planned.events] == ["SpecInvalid"]


@pytest.mark.parametrize(
    ("storage", "field"),
    [
        ({"size": "1Gi"}, "spec.storage.size"),
        ({"ephemeral": True}, "spec.storage.ephemeral"),
    ],
)
def test_immutable_field_is_refused(storage: Mapping[str, Any], field: str) -> None:
    """An API server without the schema's rules would accept the change."""
    there = standing().resource["spec"]["storage"]
    planned = plan(changed(standing(), storage={**there, **storage}), SETTINGS)

    assert condition(planned, "SpecValid")[0] == "False"
    assert condition(planned, "SpecValid")[2].startswith(field)


def test_larger_size_patches_the_volume_claims_only() -> None:
    """The StatefulSet's claim template is immutable."""
    there = standing().resource["spec"]["storage"]
    observed = changed(standing(), storage={**there, "size": "20Gi"})
    planned = plan(observed, SETTINGS)

    assert {ref.kind for ref in writes(planned, observed)} <= {"ConfigMap", "PersistentVolumeClaim"}


def test_larger_volume_is_not_shrunk() -> None:
    """The API server would refuse a smaller size in every pass."""
    claim = Ref("PersistentVolumeClaim", "data-users-r1-1")
    observed = edited(
        standing(), claim, lambda live: live["spec"]["resources"]["requests"].update(storage="99Gi")
    )

    assert claim not in {Ref(m["kind"], m["metadata"]["name"]) for m in plan(observed, SETTINGS).apply}


def test_read_settings_are_sent_to_running_nodes() -> None:
    """No pod restarts; a pod that starts now reads them from its file, which is written first."""
    observed = changed(standing(), read={"consistency": "any", "maxConcurrent": 7})
    first = plan(observed, SETTINGS)
    assert set(writes(first, observed)) == {CONFIG_MAP}
    assert not first.node_updates

    written = edited(observed, CONFIG_MAP, lambda live: merge(live, writes(first, observed)[CONFIG_MAP]))
    assert [
        (node_updates.ordinal, node_updates.read) for node_updates in plan(written, SETTINGS).node_updates
    ] == [(n, {"consistency": "any", "maxConcurrent": 7, "ingest": False}) for n in range(3)]


def merge(live: dict[str, Any], wanted: Manifest) -> None:
    live["data"] = wanted["data"]
    live["metadata"]["annotations"] = wanted["metadata"]["annotations"]


def test_paused_view_is_left_alone() -> None:
    """The operator writes only the status of a paused view."""
    observed = changed(standing(), paused=True, replicas=5, topic="others")
    planned = plan(edited(observed, STATEFUL_SET, lambda live: live["spec"].update(replicas=9)), SETTINGS)

    assert condition(planned, "Paused")[0] == "True"
    assert replace(planned, status=None, events=(), requeue_seconds=0.0) == Plan(requeue_seconds=0.0)


def test_invalid_spec_can_be_paused() -> None:
    """Pausing does not need a valid spec."""
    observed = changed(standing(), replicas=1, paused=True)
    planned = plan(edited(observed, STATEFUL_SET, lambda live: live["spec"].update(replicas=9)), SETTINGS)

    assert (condition(planned, "Paused")[0], condition(planned, "SpecValid")[0]) == ("True", "False")
    assert planned.apply == ()


def test_changed_secret_restarts_pods_and_a_missing_one_does_not() -> None:
    """A deleted Secret restarts no pod."""
    observed = changed(
        standing(), kafka={"bootstrapServers": "kafka:9092", "config": {}, "secretRef": {"name": "k"}}
    )
    rotated = writes(plan(replace(observed, kafka_secret_digest="new"), SETTINGS), observed)
    missing = writes(
        plan(replace(observed, topic=KafkaSettingsInvalid("the Secret k does not exist")), SETTINGS), observed
    )

    hashes = [
        m[CONFIG_MAP]["metadata"]["annotations"][f"{names.GROUP}/roll-hash"] for m in (rotated, missing)
    ]
    there = observed.children[CONFIG_MAP]["metadata"]["annotations"][f"{names.GROUP}/roll-hash"]
    assert hashes[0] != there
    assert hashes[1] == there


# --- children


@pytest.mark.parametrize("ref", [Ref("Service", "users"), Ref("Secret", "users-r1")])
def test_object_of_another_owner_is_left_alone(ref: Ref) -> None:
    """Status names the object, and everything else continues."""
    children = {there: live for there, live in standing().children.items() if there != ref}
    planned = plan(replace(standing(), children=children, name_conflicts=frozenset({ref})), SETTINGS)

    assert ref not in {
        *planned.token_secrets,
        *(Ref(m["kind"], m["metadata"]["name"]) for m in planned.apply),
    }
    assert CONFIG_MAP in {Ref(m["kind"], m["metadata"]["name"]) for m in planned.apply}
    assert condition(planned, "Degraded")[:2] == ("True", "NameTaken")
    assert f"{ref.kind} {ref.name}" in condition(planned, "Degraded")[2]


def test_stateful_set_waits_for_its_config_map_and_token() -> None:
    """Pods that start without them would crash."""
    for missing in (CONFIG_MAP, Ref("Secret", "users-r1")):
        children = {
            ref: live for ref, live in standing().children.items() if ref not in (missing, STATEFUL_SET)
        }
        planned = plan(replace(standing(), children=children), SETTINGS)
        assert STATEFUL_SET not in writes(planned, standing())
        assert "StatefulSet" not in {m["kind"] for m in planned.apply}


def test_deleted_child_causes_an_event() -> None:
    """The event explains why the object is back."""
    children = {ref: live for ref, live in standing().children.items() if ref != CONFIG_MAP}
    planned = plan(replace(standing(), children=children), SETTINGS)

    assert [(event.reason, "ConfigMap users-r1" in event.message) for event in planned.events] == [
        ("DriftCorrected", True)
    ]


# --- reports of nodes


def with_node_status(observed: Observed, ordinal: int, **fields: Any) -> Observed:
    nodes = dict(observed.node_statuses[1])
    nodes[ordinal] = replace(nodes[ordinal], **fields)
    return replace(observed, node_statuses={**observed.node_statuses, 1: nodes})


@pytest.mark.parametrize(
    ("fields", "kind", "status", "reason"),
    [
        ({"disk_paused": True}, "Degraded", "True", "DiskHighWater"),
        ({"failed": {2: "records are gone"}}, "Degraded", "True", "CopyFailed"),
        ({"ingest_error": "no credentials"}, "Degraded", "True", "IngestFailed"),
        ({"mismatches": 3}, "PartitionerMatches", "False", "PartitionerMismatch"),
        ({"complete": 0}, "Hydrated", "False", "Hydrating"),
    ],
)
def test_node_reports_enter_a_condition(fields: Any, kind: str, status: str, reason: str) -> None:
    """The condition stays while the node is silent and ends with the node's next report."""
    planned = plan(with_node_status(standing(), 1, **fields), SETTINGS)
    assert condition(planned, kind)[:2] == (status, reason)

    after = replace(standing(), resource={**standing().resource, "status": planned.status})
    over = plan(after, SETTINGS)
    assert condition(over, kind)[0] != status
    if kind == "Degraded":
        silent = plan(replace(after, node_statuses={}), SETTINGS)
        assert silent.status is None or condition(silent, kind)[:2] == (status, reason)


def test_node_with_an_older_placement_is_updated() -> None:
    """A node with an older placement gets the one in the ConfigMap."""
    seen = standing().node_statuses[1][2].seen
    planned = plan(with_node_status(standing(), 2, seen=replace(seen, epoch=0)), SETTINGS)

    assert [
        (update.ordinal, update.placement is not None, update.read) for update in planned.node_updates
    ] == [(2, True, None)]


# --- status


def test_recovered_status_is_written_before_any_action() -> None:
    """The next pass then starts from the same state."""
    planned = plan(replace(standing(), resource={**standing().resource, "status": {}}), SETTINGS)

    assert planned.status is not None
    assert planned.status["active"]["revision"] == "r1"
    assert replace(planned, status=None, events=(), requeue_seconds=0.0) == Plan(requeue_seconds=0.0)


def test_every_field_of_status_is_in_the_schema() -> None:
    """The API server drops fields that the schema lacks."""
    schema = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    validator = Draft202012Validator(closed(schema))
    for seed in range(6):
        history = History.begin(seed)
        for _ in range(40):
            history.run_passes(1, fault_chance=0.3, crash_chance=0.1)
            status = history.operator.resource.get("status") or {}
            if not history.guarantees.status_was_touched:
                validator.validate(status)


def closed(schema: Any) -> Any:
    """Return the schema with additional properties refused at every level."""
    if isinstance(schema, dict):
        here = {name: closed(value) for name, value in schema.items()}
        return {**here, "additionalProperties": False} if "properties" in here else here
    return [closed(item) for item in schema] if isinstance(schema, list) else schema


def test_future_time_does_not_delay_a_deadline() -> None:
    """An edited `since` in the future counts from now."""
    history = History.begin(3, replicas=1, standbyReplicas=0)
    history.settle()
    history.operator.resource["spec"]["topic"] = "others"
    history.changed()
    history.run_pass()
    status = copy.deepcopy(history.operator.resource["status"])
    status["candidate"]["since"] = text_of(history.cluster.now + 10_000)
    observed = history.operator.observe()
    planned = plan(replace(observed, resource={**observed.resource, "status": status}), SETTINGS)

    assert planned.status is not None
    assert planned.status["candidate"]["since"] == text_of(observed.now)
