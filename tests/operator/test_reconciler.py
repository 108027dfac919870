"""A resource's rounds, with a plan of the test's own, against an API server that answers as it is told."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from queryable_operator import names
from queryable_operator.actions import Event, Plan
from queryable_operator.observed import Observed, Ref, SettingsWrong
from queryable_operator.reconciler import Reconcilers
from queryable_operator.watched import View
from tests.support.fake_api import Refuse, Request
from tests.support.operating import Operating, config_map, operating, topic, until

MAP = Ref("ConfigMap", "v-r1")


@pytest.fixture
def operator() -> Iterator[Operating]:
    with operating() as operator:
        yield operator


def _make(observed: Observed) -> Plan:
    return Plan(apply=(config_map(observed, one="1"),), status={"phase": "Ready"})


def _reasons(operator: Operating) -> list[str]:
    return [event["reason"] for event in operator.api.all("Event")]


async def _settled(operator: Operating) -> None:
    operator.plan = _make
    for _ in range(2):
        await operator.round()


def test_the_finalizer_comes_first(operator: Operating) -> None:
    """Nothing is made for a resource that could go without being cleaned up."""
    asyncio.run(operator.round(_make))
    first, second, *_ = operator.api.writes()
    assert first.body["metadata"]["finalizers"] == [names.FINALIZER]
    assert second.plural == "configmaps"


def test_a_settled_resource_makes_no_write(operator: Operating) -> None:
    """A round that changes nothing asks for nothing to be changed."""

    async def rounds() -> int:
        await _settled(operator)
        before = len(operator.api.writes())
        for _ in range(3):
            await operator.round()
        return len(operator.api.writes()) - before

    assert asyncio.run(rounds()) == 0


def test_an_edit_is_put_back_and_an_event_says_so(operator: Operating) -> None:
    """The event names the field, and not its value."""

    async def rounds() -> None:
        await _settled(operator)
        live = operator.api.get(MAP.kind, "a", MAP.name)
        assert live is not None
        operator.api.put({**live, "data": {"one": "a user's"}})
        await operator.round()

    asyncio.run(rounds())
    live = operator.api.get(MAP.kind, "a", MAP.name)
    assert live is not None
    assert live["data"] == {"one": "1"}
    (event,) = operator.api.all("Event")
    assert event["reason"] == "DriftCorrected"
    assert event["message"] == "ConfigMap v-r1 was put back: data.one is not as it was set"


@pytest.mark.parametrize(("fight_seconds", "put_back"), [(3600.0, 1), (0.0, 3)])
def test_a_fight_over_a_child_is_slow(
    operator: Operating, monkeypatch: pytest.MonkeyPatch, fight_seconds: float, put_back: int
) -> None:
    """Another controller that wants it otherwise gets no round and no event for each of its writes."""
    monkeypatch.setattr("queryable_operator.executor._FIGHT_SECONDS", fight_seconds)

    async def rounds() -> None:
        await _settled(operator)
        for number in range(3):
            live = operator.api.get(MAP.kind, "a", MAP.name)
            assert live is not None
            operator.api.put({**live, "data": {"one": f"its {number}"}})
            await operator.round()

    asyncio.run(rounds())
    assert _reasons(operator) == ["DriftCorrected"] * put_back


def test_a_new_wish_is_no_drift(operator: Operating) -> None:
    """What the operator itself wants otherwise now is applied without such an event."""

    async def rounds() -> None:
        await _settled(operator)
        await operator.round(lambda observed: Plan(apply=(config_map(observed, one="2"),)))

    asyncio.run(rounds())
    assert _reasons(operator) == []
    assert operator.api.get(MAP.kind, "a", MAP.name)["data"] == {"one": "2"}  # type: ignore[index]


def test_a_child_that_was_deleted_comes_back(operator: Operating) -> None:
    """A round makes what is missing."""

    async def rounds() -> None:
        await _settled(operator)
        operator.api.delete(MAP.kind, "a", MAP.name)
        await operator.round()

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
        await operator.round(_make)
        await operator.round()

    asyncio.run(rounds())
    assert operator.api.get(MAP.kind, "a", MAP.name) == theirs
    assert [observed.taken for observed in operator.observed] == [frozenset(), {MAP}]


def test_a_name_that_is_free_again_is_used(operator: Operating) -> None:
    """Once somebody else's object is gone, ours takes its place."""
    operator.api.put({"apiVersion": "v1", "kind": MAP.kind, "metadata": {"name": MAP.name, "namespace": "a"}})

    async def rounds() -> None:
        await operator.round(_make)
        operator.api.delete(MAP.kind, "a", MAP.name)
        await operator.round()

    asyncio.run(rounds())
    assert operator.observed[-1].taken == frozenset()
    assert operator.api.get(MAP.kind, "a", MAP.name)["data"] == {"one": "1"}  # type: ignore[index]


def test_a_label_makes_nobody_a_child(operator: Operating) -> None:
    """An object that bears our label without our owner reference is taken, not ours."""
    meta = {"name": MAP.name, "namespace": "a", "labels": {names.VIEW_LABEL: "v"}}
    operator.api.put({"apiVersion": "v1", "kind": MAP.kind, "metadata": meta})
    asyncio.run(operator.round())
    assert operator.observed[0].taken == {MAP}
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
        await operator.reconciler.round()
        assert operator.api.get(MAP.kind, "a", MAP.name)["data"] == {"one": "newer"}  # type: ignore[index]
        await operator.round()

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
            await operator.round()
        return len(operator.api.writes()) - before

    assert asyncio.run(rounds()) == 0


def test_a_token_is_made_once_and_not_shown(operator: Operating) -> None:
    """The Secret is ours, its token random, and the plan sees the object without its contents."""

    def make(observed: Observed) -> Plan:
        return Plan(apply=(config_map(observed),), secrets=(Ref("Secret", "v-r1"),))

    async def rounds() -> None:
        for _ in range(3):
            await operator.round(make)

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
    monkeypatch.setattr("queryable_operator.observer._TOKEN_SECONDS", 0.0)
    ref = Ref("Secret", "v-r1")

    def make(observed: Observed) -> Plan:
        return Plan(apply=(config_map(observed),), secrets=() if ref in observed.children else (ref,))

    async def rounds() -> None:
        for _ in range(3):
            await operator.round(make)
        operator.api.delete("Secret", "a", "v-r1")
        await operator.round()

    asyncio.run(rounds())
    assert [ref in observed.children for observed in operator.observed] == [False, True, True, False]
    assert operator.api.get("Secret", "a", "v-r1") is not None


def test_one_failure_ends_the_round_and_is_told_once(operator: Operating) -> None:
    """After an action that the API server refuses nothing more is done, and the user is told why, once."""

    def order(request: Request) -> None:
        if request.plural == "configmaps" and request.writes:
            raise Refuse(403, "exceeded quota")

    async def rounds() -> list[float | None]:
        operator.api.order = order
        return [await operator.round(_make) for _ in range(3)]

    seconds = asyncio.run(rounds())
    assert "status" not in operator.api.get(names.KIND, "a", "v")  # type: ignore[operator]
    (event,) = operator.api.all("Event")
    assert (event["type"], event["reason"]) == ("Warning", "ReconcileFailed")
    assert event["message"] == "cannot apply ConfigMap v-r1 in a: exceeded quota"
    assert all(later is not None and later <= 60 for later in seconds)


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
            await operator.round(
                lambda observed: replace(_make(observed), apply=(larger, *_make(observed).apply))
            )

    asyncio.run(rounds())
    assert operator.api.get(names.KIND, "a", "v")["status"] == {"phase": "Ready"}  # type: ignore[index]
    assert operator.api.get(MAP.kind, "a", MAP.name) is not None
    (event,) = operator.api.all("Event")
    assert event["message"].endswith("only dynamically provisioned pvc can be resized")


def test_rounds_that_fail_come_later_each_time(operator: Operating) -> None:
    """The back-off doubles up to a minute, and a round that succeeds ends it."""

    def broken(_: Observed) -> Plan:
        raise RuntimeError("a defect")

    async def rounds() -> tuple[list[float | None], float | None]:
        seconds = [await operator.round(broken) for _ in range(12)]
        return seconds, await operator.round(lambda _: Plan(clean_kafka=True, again_seconds=3))

    seconds, after = asyncio.run(rounds())
    assert seconds[0] is not None
    assert seconds[0] <= 0.5
    assert seconds[-1] is not None
    assert 30 <= seconds[-1] <= 60
    assert after == 3


def test_a_resource_without_nodes_is_left_alone_until_something_changes(operator: Operating) -> None:
    """There is nobody to ask and nothing was to do, so the next look comes no sooner than it must."""

    def busy(observed: Observed) -> Plan:
        return Plan(apply=(config_map(observed),), again_seconds=1)

    async def rounds() -> list[float | None]:
        return [await operator.round(busy) for _ in range(2)]

    assert asyncio.run(rounds()) == [1, 10]


def test_an_api_server_that_is_busy_is_left_alone_for_as_long_as_it_says(operator: Operating) -> None:
    """Its Retry-After is a lower bound for the next round."""

    def order(request: Request) -> None:
        if request.writes:
            raise Refuse(429, "too many requests", Retry_After="42")

    operator.api.order = order
    assert asyncio.run(operator.round(_make)) == 42
    assert operator.api.all("Event") == []


def test_an_event_that_cannot_be_written_holds_up_nothing(operator: Operating) -> None:
    """In a namespace that ends nothing can be created, and the finalizer goes all the same."""

    def order(request: Request) -> None:
        if request.method == "POST":
            raise Refuse(403, "because it is being terminated")

    async def rounds() -> None:
        await operator.round()
        operator.api.delete(names.KIND, "a", "v")
        operator.api.order = order
        await operator.round(
            lambda _: Plan(events=(Event("Warning", "CleanupFailed", "left"),), release=True)
        )

    asyncio.run(rounds())
    assert operator.api.get(names.KIND, "a", "v") is None


def test_a_resource_that_is_gone_ends_its_rounds(operator: Operating) -> None:
    """None says that there is nothing to come back for."""
    operator.api.delete(names.KIND, "a", "v")
    assert asyncio.run(operator.round()) is None


def test_a_resource_that_only_others_hold_is_left_to_them(operator: Operating) -> None:
    """While somebody else's finalizer keeps a deleted resource, nothing is done to it."""
    live = topic()
    live["metadata"] |= {"finalizers": ["example.com/theirs"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    operator.api.put(live)
    asyncio.run(operator.round(_make))
    assert operator.api.writes() == []


def test_only_what_was_observed_is_deleted(operator: Operating) -> None:
    """The uid that was observed is a precondition; what was not observed is not touched."""

    async def rounds() -> None:
        await _settled(operator)
        await operator.round(lambda _: Plan(delete=(MAP, Ref("ConfigMap", "v-r2"))))

    asyncio.run(rounds())
    assert operator.api.get(MAP.kind, "a", MAP.name) is None
    assert [r.name for r in operator.api.writes() if r.method == "DELETE"] == ["v-r1"]


def test_a_secret_that_is_missing_is_said_without_any_value(operator: Operating) -> None:
    """The topic's settings are wrong until the Secret is there; its digest tells when it changes."""
    spec = {"kafka": {"bootstrapServers": "127.0.0.1:1", "secretRef": {"name": "client"}}}
    live = operator.api.get(names.KIND, "a", "v")
    assert live is not None
    operator.api.put({**live, "spec": {**live["spec"], **spec}})
    meta = {"name": "client", "namespace": "a"}
    password = base64.b64encode(b"hunter2").decode()
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": {"sasl.jaas.config": password}}

    async def rounds() -> None:
        await operator.round()
        operator.api.put(secret)
        await operator.round()

    asyncio.run(rounds())
    first, second = operator.observed
    assert first.topic == SettingsWrong("there is no Secret client")
    assert (first.kafka_secret_digest, len(second.kafka_secret_digest)) == ("", 64)
    assert "hunter2" not in repr(second)
    assert password not in json.dumps(operator.api.all("Event"))


def test_another_resource_of_the_same_name_starts_afresh(operator: Operating) -> None:
    """That the first one could not be cleaned up says nothing of the second."""

    async def rounds() -> None:
        await operator.round(lambda _: Plan(clean_kafka=True))
        await operator.round(lambda _: Plan(release=True))
        operator.api.delete(names.KIND, "a", "v")
        operator.api.put(topic())
        await operator.round(_make)

    asyncio.run(rounds())
    _, cleaned, afresh = operator.observed
    assert cleaned.kafka_refused is not None
    assert afresh.kafka_refused is None
    owner = operator.api.get(MAP.kind, "a", MAP.name)["metadata"]["ownerReferences"][0]  # type: ignore[index]
    assert owner["uid"] == operator.api.get(names.KIND, "a", "v")["metadata"]["uid"]  # type: ignore[index]


def test_a_resource_that_came_again_while_its_predecessor_went_is_looked_at(operator: Operating) -> None:
    """Its event comes while the answer that the first one is gone is still under way."""
    get = operator.cluster.get
    came: list[str] = []

    async def late(kind: str, namespace: str, name: str) -> Any:
        found = await get(kind, namespace, name)
        if kind == names.KIND and found is None and not came:
            again = operator.api.put(topic())
            came.append(again["metadata"]["uid"])
            reconcilers.noticed(again)
        return found

    operator.cluster.get = late  # type: ignore[method-assign]
    reconcilers = Reconcilers()
    reconcilers.tools = operator.tools

    async def rounds() -> None:
        live = operator.api.get(names.KIND, "a", "v")
        assert live is not None
        reconcilers.noticed(live)
        await until(lambda: operator.observed)
        operator.api.objects.clear()
        reconcilers.gone(("a", "v"))
        await until(lambda: came and operator.observed[-1].resource["metadata"]["uid"] == came[0])
        await reconcilers.stop()

    asyncio.run(rounds())


class _Woken(Reconcilers):
    def __init__(self, operator: Operating) -> None:
        super().__init__()
        self.tools = operator.tools
        self.woken = 0

    def wake(self, view: View) -> None:
        self.woken += 1
        super().wake(view)


@pytest.mark.parametrize(
    ("change", "wakes"),
    [
        ({"status": {"phase": "Pending"}}, False),
        ({"metadata": {"resourceVersion": "99"}}, False),
        ({"metadata": {"generation": 7}}, True),
        ({"metadata": {"annotations": {names.PROMOTE_ANNOTATION: "r2"}}}, True),
        ({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, True),
    ],
)
def test_our_own_status_wakes_nobody(operator: Operating, change: dict[str, Any], wakes: bool) -> None:
    """An event that shows nothing but another status begins no round; one of what a user decides does."""

    async def notice() -> int:
        reconcilers = _Woken(operator)
        live = operator.api.get(names.KIND, "a", "v")
        assert live is not None
        reconcilers.noticed(live)
        reconcilers.noticed(
            {**live, **change, "metadata": {**live["metadata"], **change.get("metadata", {})}}
        )
        await reconcilers.stop()
        return reconcilers.woken

    assert asyncio.run(notice()) == wakes


def test_a_round_that_ends_is_counted(operator: Operating) -> None:
    """By how it ended, with the phase that it found."""
    from prometheus_client import generate_latest

    asyncio.run(operator.round(_make))
    text = generate_latest(operator.metrics.registry).decode()
    assert 'qt_reconcile_total{result="ok"} 1.0' in text
    assert 'qt_phase{name="v",namespace="a",phase="Ready"} 1.0' in text
    assert operator.health.problem() is None
