"""Test what a pass writes, with plans of the test and a fake API server."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import replace
from typing import Any

import pytest

from queryable_operator.decide.actions import Event, Plan, TopicDeletion
from queryable_operator.spec import names
from queryable_operator.spec.observed import Observed, Ref
from tests.support.fake_api import Refuse, Request
from tests.support.operating import MAP, Operating, config_map, make_map


def _reasons(operator: Operating) -> list[str]:
    return [event["reason"] for event in operator.api.all("Event")]


async def _settled(operator: Operating) -> None:
    operator.plan = make_map
    for _ in range(2):
        await operator.run_pass()


async def _writes_once_settled(operator: Operating) -> int:
    """Return the number of writes of three passes after the resource has settled."""
    await _settled(operator)
    before = len(operator.api.writes())
    for _ in range(3):
        await operator.run_pass()
    return len(operator.api.writes()) - before


def test_settled_resource_causes_no_write(operator: Operating) -> None:
    """A pass without a change writes nothing."""
    assert asyncio.run(_writes_once_settled(operator)) == 0


def test_drift_is_corrected_with_an_event(operator: Operating) -> None:
    """The event names the edited field and not its value."""

    async def passes() -> None:
        await _settled(operator)
        live = operator.api.get(MAP.kind, "a", MAP.name)
        assert live is not None
        operator.api.put({**live, "data": {"one": "a user's"}})
        await operator.run_pass()

    asyncio.run(passes())
    live = operator.api.get(MAP.kind, "a", MAP.name)
    assert live is not None
    assert live["data"] == {"one": "1"}
    (event,) = operator.api.all("Event")
    assert event["reason"] == "DriftCorrected"
    assert event["message"] == "ConfigMap v-r1 was corrected: data.one differs"


@pytest.mark.parametrize(("fight_seconds", "put_back"), [(3600.0, 1), (0.0, 3)])
def test_repeated_drift_is_corrected_slowly(
    operator: Operating, monkeypatch: pytest.MonkeyPatch, fight_seconds: float, put_back: int
) -> None:
    """Another controller that keeps changing a field causes one correction in ten seconds."""
    monkeypatch.setattr("queryable_operator.act.executor._FIGHT_SECONDS", fight_seconds)

    async def passes() -> None:
        await _settled(operator)
        for number in range(3):
            live = operator.api.get(MAP.kind, "a", MAP.name)
            assert live is not None
            operator.api.put({**live, "data": {"one": f"its {number}"}})
            await operator.run_pass()

    asyncio.run(passes())
    assert _reasons(operator) == ["DriftCorrected"] * put_back


def test_change_of_the_plan_is_not_drift(operator: Operating) -> None:
    """A change that the operator decides causes no drift event."""

    async def passes() -> None:
        await _settled(operator)
        await operator.run_pass(lambda observed: Plan(apply=(config_map(observed, one="2"),)))

    asyncio.run(passes())
    assert _reasons(operator) == []
    assert operator.api.get(MAP.kind, "a", MAP.name)["data"] == {"one": "2"}  # type: ignore[index]


def test_deleted_child_is_recreated(operator: Operating) -> None:
    """A pass recreates a missing child."""

    async def passes() -> None:
        await _settled(operator)
        operator.api.delete(MAP.kind, "a", MAP.name)
        await operator.run_pass()

    asyncio.run(passes())
    assert operator.api.get(MAP.kind, "a", MAP.name) is not None


def test_object_of_another_owner_is_not_written(operator: Operating) -> None:
    """A name in use is reported to the next plan, and the object is not overwritten."""
    theirs = operator.api.put(
        {
            "apiVersion": "v1",
            "kind": MAP.kind,
            "metadata": {"name": MAP.name, "namespace": "a"},
            "data": {"its": "own"},
        }
    )

    async def passes() -> None:
        await operator.run_pass(make_map)
        await operator.run_pass()

    asyncio.run(passes())
    assert operator.api.get(MAP.kind, "a", MAP.name) == theirs
    assert [observed.name_conflicts for observed in operator.observed] == [frozenset(), {MAP}]


def test_freed_name_is_used(operator: Operating) -> None:
    """Once the other owner's object is deleted, the child is created."""
    operator.api.put({"apiVersion": "v1", "kind": MAP.kind, "metadata": {"name": MAP.name, "namespace": "a"}})

    async def passes() -> None:
        await operator.run_pass(make_map)
        operator.api.delete(MAP.kind, "a", MAP.name)
        await operator.run_pass()

    asyncio.run(passes())
    assert operator.observed[-1].name_conflicts == frozenset()
    assert operator.api.get(MAP.kind, "a", MAP.name)["data"] == {"one": "1"}  # type: ignore[index]


def test_failed_deletion_of_a_topic_is_observed(operator: Operating) -> None:
    """The next observation says why an internal topic could not be deleted. Nothing else ends."""
    deletion = TopicDeletion("127.0.0.1:1", "a.v.r1-0b8a3f3e6a7e.rekey")

    async def passes() -> None:
        await operator.run_pass(lambda _: Plan(delete_topics=(deletion,), status={"phase": "Retiring"}))
        await operator.run_pass(lambda _: Plan())

    asyncio.run(passes())
    assert "127.0.0.1:1" in str(operator.observed[-1].topic_deletions[deletion.key])
    assert operator.observed[-1].resource["status"] == {"phase": "Retiring"}


def test_label_without_owner_reference_makes_no_child(operator: Operating) -> None:
    """An object with our label and without our owner reference is a name conflict."""
    meta = {"name": MAP.name, "namespace": "a", "labels": {names.VIEW_LABEL: "v"}}
    operator.api.put({"apiVersion": "v1", "kind": MAP.kind, "metadata": meta})
    asyncio.run(operator.run_pass())
    assert operator.observed[0].name_conflicts == {MAP}
    assert operator.observed[0].children == {}


def test_placement_is_not_written_over_a_changed_one(operator: Operating) -> None:
    """An object that must be unchanged is applied over the observed version only."""

    async def passes() -> None:
        await _settled(operator)
        operator.plan = lambda observed: replace(
            Plan(apply=(config_map(observed, one="2"),)), expect_unchanged=frozenset({MAP})
        )
        operator.bring()
        live = operator.api.get(MAP.kind, "a", MAP.name)
        assert live is not None
        operator.api.put({**live, "data": {"one": "newer"}})
        await operator.reconciler.run_pass()
        assert operator.api.get(MAP.kind, "a", MAP.name)["data"] == {"one": "newer"}  # type: ignore[index]
        await operator.run_pass()

    asyncio.run(passes())
    assert operator.api.get(MAP.kind, "a", MAP.name)["data"] == {"one": "2"}  # type: ignore[index]


def test_normalized_object_is_applied_once(operator: Operating) -> None:
    """A field that the API server normalizes does not cause an apply in every pass."""
    applied = operator.cluster.apply

    async def rewritten(namespace: str, manifest: Any, version: str | None = None) -> Any:
        answer = await applied(namespace, manifest, version)
        return operator.api.put({**answer, "data": {"one": "1000m"}})

    operator.cluster.apply = rewritten  # type: ignore[method-assign,assignment]

    assert asyncio.run(_writes_once_settled(operator)) == 0


def test_token_is_created_once_and_not_exposed(operator: Operating) -> None:
    """The token Secret is ours and random, and the plan sees it without contents."""

    def make(observed: Observed) -> Plan:
        return Plan(apply=(config_map(observed),), token_secrets=(Ref("Secret", "v-r1"),))

    async def passes() -> None:
        for _ in range(3):
            await operator.run_pass(make)

    asyncio.run(passes())
    live = operator.api.get("Secret", "a", "v-r1")
    assert live is not None
    assert len(base64.b64decode(live["data"]["token"])) >= 32
    seen = operator.observed[-1].children[Ref("Secret", "v-r1")]
    assert "data" not in seen
    assert len([request for request in operator.api.writes() if request.plural == "secrets"]) == 3
    assert {r.method for r in operator.api.writes() if r.plural == "secrets"} == {"POST"}


def test_deleted_token_is_detected(operator: Operating, monkeypatch: pytest.MonkeyPatch) -> None:
    """Secrets are not watched, so the token Secret is read periodically."""
    monkeypatch.setattr("queryable_operator.act.observer._TOKEN_SECONDS", 0.0)
    ref = Ref("Secret", "v-r1")

    def make(observed: Observed) -> Plan:
        return Plan(apply=(config_map(observed),), token_secrets=() if ref in observed.children else (ref,))

    async def passes() -> None:
        for _ in range(3):
            await operator.run_pass(make)
        operator.api.delete("Secret", "a", "v-r1")
        await operator.run_pass()

    asyncio.run(passes())
    assert [ref in observed.children for observed in operator.observed] == [False, True, True, False]
    assert operator.api.get("Secret", "a", "v-r1") is not None


def test_volume_that_cannot_grow_does_not_block_the_pass(operator: Operating) -> None:
    """A storage class without expansion is reported once, and the rest of the plan is executed."""
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": names.volume_claim("v", 1, 0),
            "namespace": "a",
            "labels": {**names.revision_labels("v", 1)},
        },
        "spec": {"resources": {"requests": {"storage": "1Gi"}}},
    }
    larger = {**claim, "spec": {"resources": {"requests": {"storage": "2Gi"}}}}

    def order(request: Request) -> None:
        if request.plural == "persistentvolumeclaims" and request.writes:
            raise Refuse(403, "only dynamically provisioned pvc can be resized")

    async def passes() -> None:
        operator.api.put(claim)
        operator.api.order = order
        for _ in range(3):
            await operator.run_pass(
                lambda observed: replace(make_map(observed), apply=(larger, *make_map(observed).apply))
            )

    asyncio.run(passes())
    assert operator.api.get(names.KIND, "a", "v")["status"] == {"phase": "Ready"}  # type: ignore[index]
    assert operator.api.get(MAP.kind, "a", MAP.name) is not None
    (event,) = operator.api.all("Event")
    assert event["message"].endswith("only dynamically provisioned pvc can be resized")


def test_refused_event_does_not_block_the_pass(operator: Operating) -> None:
    """In a terminating namespace nothing can be created, and the finalizer is removed all the same."""

    def order(request: Request) -> None:
        if request.method == "POST":
            raise Refuse(403, "because it is being terminated")

    async def passes() -> None:
        await operator.run_pass()
        operator.api.delete(names.KIND, "a", "v")
        operator.api.order = order
        await operator.run_pass(
            lambda _: Plan(events=(Event("Warning", "CleanupFailed", "left"),), remove_finalizer=True)
        )

    asyncio.run(passes())
    assert operator.api.get(names.KIND, "a", "v") is None


def test_deletion_has_the_observed_uid(operator: Operating) -> None:
    """The observed uid is a precondition; an unobserved object is not deleted."""

    async def passes() -> None:
        await _settled(operator)
        await operator.run_pass(lambda _: Plan(delete=(MAP, Ref("ConfigMap", "v-r2"))))

    asyncio.run(passes())
    assert operator.api.get(MAP.kind, "a", MAP.name) is None
    assert [r.name for r in operator.api.writes() if r.method == "DELETE"] == ["v-r1"]
