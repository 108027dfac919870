"""What a round writes and what it leaves alone, with plans of the tests' own and an API server that answers as it is told."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import replace
from typing import Any

import pytest

from queryable_operator.decide.actions import Event, Plan
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


def test_a_settled_resource_makes_no_write(operator: Operating) -> None:
    """A round that changes nothing asks for nothing to be changed."""

    async def rounds() -> int:
        await _settled(operator)
        before = len(operator.api.writes())
        for _ in range(3):
            await operator.run_pass()
        return len(operator.api.writes()) - before

    assert asyncio.run(rounds()) == 0


def test_an_edit_is_put_back_and_an_event_says_so(operator: Operating) -> None:
    """The event names the field, and not its value."""

    async def rounds() -> None:
        await _settled(operator)
        live = operator.api.get(MAP.kind, "a", MAP.name)
        assert live is not None
        operator.api.put({**live, "data": {"one": "a user's"}})
        await operator.run_pass()

    asyncio.run(rounds())
    live = operator.api.get(MAP.kind, "a", MAP.name)
    assert live is not None
    assert live["data"] == {"one": "1"}
    (event,) = operator.api.all("Event")
    assert event["reason"] == "DriftCorrected"
    assert event["message"] == "ConfigMap v-r1 was corrected: data.one differs"


@pytest.mark.parametrize(("fight_seconds", "put_back"), [(3600.0, 1), (0.0, 3)])
def test_a_fight_over_a_child_is_slow(
    operator: Operating, monkeypatch: pytest.MonkeyPatch, fight_seconds: float, put_back: int
) -> None:
    """Another controller that wants it otherwise gets no round and no event for each of its writes."""
    monkeypatch.setattr("queryable_operator.act.executor._FIGHT_SECONDS", fight_seconds)

    async def rounds() -> None:
        await _settled(operator)
        for number in range(3):
            live = operator.api.get(MAP.kind, "a", MAP.name)
            assert live is not None
            operator.api.put({**live, "data": {"one": f"its {number}"}})
            await operator.run_pass()

    asyncio.run(rounds())
    assert _reasons(operator) == ["DriftCorrected"] * put_back


def test_a_new_wish_is_no_drift(operator: Operating) -> None:
    """What the operator itself wants otherwise now is applied without such an event."""

    async def rounds() -> None:
        await _settled(operator)
        await operator.run_pass(lambda observed: Plan(apply=(config_map(observed, one="2"),)))

    asyncio.run(rounds())
    assert _reasons(operator) == []
    assert operator.api.get(MAP.kind, "a", MAP.name)["data"] == {"one": "2"}  # type: ignore[index]


def test_a_child_that_was_deleted_comes_back(operator: Operating) -> None:
    """A round makes what is missing."""

    async def rounds() -> None:
        await _settled(operator)
        operator.api.delete(MAP.kind, "a", MAP.name)
        await operator.run_pass()

    asyncio.run(rounds())
    assert operator.api.get(MAP.kind, "a", MAP.name) is not None


def test_somebody_elses_object_is_left_alone(operator: Operating) -> None:
    """A name that is taken is told to the plan, which had not seen it, and nothing is written over it."""
    theirs = operator.api.put(
        {
            "apiVersion": "v1",
            "kind": MAP.kind,
            "metadata": {"name": MAP.name, "namespace": "a"},
            "data": {"its": "own"},
        }
    )

    async def rounds() -> None:
        await operator.run_pass(make_map)
        await operator.run_pass()

    asyncio.run(rounds())
    assert operator.api.get(MAP.kind, "a", MAP.name) == theirs
    assert [observed.name_conflicts for observed in operator.observed] == [frozenset(), {MAP}]


def test_a_name_that_is_free_again_is_used(operator: Operating) -> None:
    """Once somebody else's object is gone, ours takes its place."""
    operator.api.put({"apiVersion": "v1", "kind": MAP.kind, "metadata": {"name": MAP.name, "namespace": "a"}})

    async def rounds() -> None:
        await operator.run_pass(make_map)
        operator.api.delete(MAP.kind, "a", MAP.name)
        await operator.run_pass()

    asyncio.run(rounds())
    assert operator.observed[-1].name_conflicts == frozenset()
    assert operator.api.get(MAP.kind, "a", MAP.name)["data"] == {"one": "1"}  # type: ignore[index]


def test_a_label_makes_nobody_a_child(operator: Operating) -> None:
    """An object that bears our label without our owner reference is taken, not ours."""
    meta = {"name": MAP.name, "namespace": "a", "labels": {names.VIEW_LABEL: "v"}}
    operator.api.put({"apiVersion": "v1", "kind": MAP.kind, "metadata": meta})
    asyncio.run(operator.run_pass())
    assert operator.observed[0].name_conflicts == {MAP}
    assert operator.observed[0].children == {}


def test_a_placement_is_not_written_over_a_newer_one(operator: Operating) -> None:
    """An object that is expected unchanged is applied only over what was observed, and then looked at again."""

    async def rounds() -> None:
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

    asyncio.run(rounds())
    assert operator.api.get(MAP.kind, "a", MAP.name)["data"] == {"one": "2"}  # type: ignore[index]


def test_an_api_server_that_rewrites_what_it_is_told_is_not_told_for_ever(operator: Operating) -> None:
    """What still differs after it was applied is applied once."""
    applied = operator.cluster.apply

    async def rewritten(namespace: str, manifest: Any, version: str | None = None) -> Any:
        answer = await applied(namespace, manifest, version)
        return operator.api.put({**answer, "data": {"one": "1000m"}})

    operator.cluster.apply = rewritten  # type: ignore[method-assign,assignment]

    async def rounds() -> int:
        await _settled(operator)
        before = len(operator.api.writes())
        for _ in range(3):
            await operator.run_pass()
        return len(operator.api.writes()) - before

    assert asyncio.run(rounds()) == 0


def test_a_token_is_made_once_and_not_shown(operator: Operating) -> None:
    """The Secret is ours, its token random, and the plan sees the object without its contents."""

    def make(observed: Observed) -> Plan:
        return Plan(apply=(config_map(observed),), token_secrets=(Ref("Secret", "v-r1"),))

    async def rounds() -> None:
        for _ in range(3):
            await operator.run_pass(make)

    asyncio.run(rounds())
    live = operator.api.get("Secret", "a", "v-r1")
    assert live is not None
    assert len(base64.b64decode(live["data"]["token"])) >= 32
    seen = operator.observed[-1].children[Ref("Secret", "v-r1")]
    assert "data" not in seen
    assert len([request for request in operator.api.writes() if request.plural == "secrets"]) == 3
    assert {r.method for r in operator.api.writes() if r.plural == "secrets"} == {"POST"}


def test_a_token_that_was_deleted_is_missed(operator: Operating, monkeypatch: pytest.MonkeyPatch) -> None:
    """Secrets are not watched, so it is looked for from time to time."""
    monkeypatch.setattr("queryable_operator.act.observer._TOKEN_SECONDS", 0.0)
    ref = Ref("Secret", "v-r1")

    def make(observed: Observed) -> Plan:
        return Plan(apply=(config_map(observed),), token_secrets=() if ref in observed.children else (ref,))

    async def rounds() -> None:
        for _ in range(3):
            await operator.run_pass(make)
        operator.api.delete("Secret", "a", "v-r1")
        await operator.run_pass()

    asyncio.run(rounds())
    assert [ref in observed.children for observed in operator.observed] == [False, True, True, False]
    assert operator.api.get("Secret", "a", "v-r1") is not None


def test_a_volume_that_cannot_grow_holds_up_nothing(operator: Operating) -> None:
    """A storage class that enlarges no volume is told once, and everything else is done."""
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

    async def rounds() -> None:
        operator.api.put(claim)
        operator.api.order = order
        for _ in range(3):
            await operator.run_pass(
                lambda observed: replace(make_map(observed), apply=(larger, *make_map(observed).apply))
            )

    asyncio.run(rounds())
    assert operator.api.get(names.KIND, "a", "v")["status"] == {"phase": "Ready"}  # type: ignore[index]
    assert operator.api.get(MAP.kind, "a", MAP.name) is not None
    (event,) = operator.api.all("Event")
    assert event["message"].endswith("only dynamically provisioned pvc can be resized")


def test_an_event_that_cannot_be_written_holds_up_nothing(operator: Operating) -> None:
    """In a namespace that ends nothing can be created, and the finalizer goes all the same."""

    def order(request: Request) -> None:
        if request.method == "POST":
            raise Refuse(403, "because it is being terminated")

    async def rounds() -> None:
        await operator.run_pass()
        operator.api.delete(names.KIND, "a", "v")
        operator.api.order = order
        await operator.run_pass(
            lambda _: Plan(events=(Event("Warning", "CleanupFailed", "left"),), remove_finalizer=True)
        )

    asyncio.run(rounds())
    assert operator.api.get(names.KIND, "a", "v") is None


def test_only_what_was_observed_is_deleted(operator: Operating) -> None:
    """The uid that was observed is a precondition; what was not observed is not touched."""

    async def rounds() -> None:
        await _settled(operator)
        await operator.run_pass(lambda _: Plan(delete=(MAP, Ref("ConfigMap", "v-r2"))))

    asyncio.run(rounds())
    assert operator.api.get(MAP.kind, "a", MAP.name) is None
    assert [r.name for r in operator.api.writes() if r.method == "DELETE"] == ["v-r1"]
