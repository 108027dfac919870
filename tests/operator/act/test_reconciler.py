"""When a resource's rounds come and how they end, with plans of the tests' own and an API server that answers as it is told."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest

from queryable_operator.act.reconciler import Reconcilers
from queryable_operator.act.watch_cache import ResourceKey
from queryable_operator.decide.actions import Plan
from queryable_operator.spec import names
from queryable_operator.spec.observed import KafkaSettingsInvalid, Observed
from tests.support.fake_api import Refuse, Request
from tests.support.operating import MAP, Operating, config_map, make_map, topic, until


def test_the_finalizer_comes_first(operator: Operating) -> None:
    """Nothing is made for a resource that could go without being cleaned up."""
    asyncio.run(operator.run_pass(make_map))
    first, second, *_ = operator.api.writes()
    assert first.body["metadata"]["finalizers"] == [names.FINALIZER]
    assert second.plural == "configmaps"


def test_one_failure_ends_the_round_and_is_told_once(operator: Operating) -> None:
    """After an action that the API server refuses nothing more is done, and the user is told why, once."""

    def order(request: Request) -> None:
        if request.plural == "configmaps" and request.writes:
            raise Refuse(403, "exceeded quota")

    async def rounds() -> list[float | None]:
        operator.api.order = order
        return [await operator.run_pass(make_map) for _ in range(3)]

    seconds = asyncio.run(rounds())
    assert "status" not in operator.api.get(names.KIND, "a", "v")  # type: ignore[operator]
    (event,) = operator.api.all("Event")
    assert (event["type"], event["reason"]) == ("Warning", "ReconcileFailed")
    assert event["message"] == "cannot apply ConfigMap v-r1 in a: exceeded quota"
    assert all(later is not None and later <= 60 for later in seconds)


def test_rounds_that_fail_come_later_each_time(operator: Operating) -> None:
    """The back-off doubles up to a minute, and a round that succeeds ends it."""

    def broken(_: Observed) -> Plan:
        raise RuntimeError("a defect")

    async def rounds() -> tuple[list[float | None], float | None]:
        seconds = [await operator.run_pass(broken) for _ in range(12)]
        return seconds, await operator.run_pass(lambda _: Plan(clean_kafka=True, requeue_seconds=3))

    seconds, after = asyncio.run(rounds())
    assert seconds[0] is not None
    assert seconds[0] <= 0.5
    assert seconds[-1] is not None
    assert 30 <= seconds[-1] <= 60
    assert after == 3


def test_a_resource_without_nodes_is_left_alone_until_something_changes(operator: Operating) -> None:
    """There is nobody to ask and nothing was to do, so the next look comes no sooner than it must."""

    def busy(observed: Observed) -> Plan:
        return Plan(apply=(config_map(observed),), requeue_seconds=1)

    async def rounds() -> list[float | None]:
        return [await operator.run_pass(busy) for _ in range(2)]

    assert asyncio.run(rounds()) == [1, 10]


def test_an_api_server_that_is_busy_is_left_alone_for_as_long_as_it_says(operator: Operating) -> None:
    """Its Retry-After is a lower bound for the next round."""

    def order(request: Request) -> None:
        if request.writes:
            raise Refuse(429, "too many requests", Retry_After="42")

    operator.api.order = order
    assert asyncio.run(operator.run_pass(make_map)) == 42
    assert operator.api.all("Event") == []


def test_a_resource_that_is_gone_ends_its_rounds(operator: Operating) -> None:
    """None says that there is nothing to come back for."""
    operator.api.delete(names.KIND, "a", "v")
    assert asyncio.run(operator.run_pass()) is None


def test_a_resource_that_only_others_hold_is_left_to_them(operator: Operating) -> None:
    """While somebody else's finalizer keeps a deleted resource, nothing is done to it."""
    live = topic()
    live["metadata"] |= {"finalizers": ["example.com/theirs"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    operator.api.put(live)
    asyncio.run(operator.run_pass(make_map))
    assert operator.api.writes() == []


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
        await operator.run_pass()
        operator.api.put(secret)
        await operator.run_pass()

    asyncio.run(rounds())
    first, second = operator.observed
    assert first.topic == KafkaSettingsInvalid("the Secret client does not exist")
    assert (first.kafka_secret_digest, len(second.kafka_secret_digest)) == ("", 64)
    assert "hunter2" not in repr(second)
    assert password not in json.dumps(operator.api.all("Event"))


def test_another_resource_of_the_same_name_starts_afresh(operator: Operating) -> None:
    """That the first one could not be cleaned up says nothing of the second."""

    async def rounds() -> None:
        await operator.run_pass(lambda _: Plan(clean_kafka=True))
        await operator.run_pass(lambda _: Plan(remove_finalizer=True))
        operator.api.delete(names.KIND, "a", "v")
        operator.api.put(topic())
        await operator.run_pass(make_map)

    asyncio.run(rounds())
    _, cleaned, afresh = operator.observed
    assert cleaned.kafka_cleanup_error is not None
    assert afresh.kafka_cleanup_error is None
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
            reconcilers.observe(again)
        return found

    operator.cluster.get = late  # type: ignore[method-assign]
    reconcilers = Reconcilers()
    reconcilers.dependencies = operator.dependencies

    async def rounds() -> None:
        live = operator.api.get(names.KIND, "a", "v")
        assert live is not None
        reconcilers.observe(live)
        await until(lambda: operator.observed)
        operator.api.objects.clear()
        reconcilers.deleted(("a", "v"))
        await until(lambda: came and operator.observed[-1].resource["metadata"]["uid"] == came[0])
        await reconcilers.stop()

    asyncio.run(rounds())


class _Woken(Reconcilers):
    def __init__(self, operator: Operating) -> None:
        super().__init__()
        self.dependencies = operator.dependencies
        self.woken = 0

    def wake(self, view: ResourceKey) -> None:
        self.woken += 1
        super().wake(view)


@pytest.mark.parametrize(
    ("change", "wakes"),
    [
        ({"status": {"phase": "Pending"}}, False),
        ({"metadata": {"resourceVersion": "99"}}, False),
        ({"metadata": {"generation": 7}}, True),
        ({"metadata": {"annotations": {"example.com/note": "1"}}}, True),
        ({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, True),
    ],
)
def test_our_own_status_wakes_nobody(operator: Operating, change: dict[str, Any], wakes: bool) -> None:
    """An event that shows nothing but another status begins no round; one of what a user decides does."""

    async def notice() -> int:
        reconcilers = _Woken(operator)
        live = operator.api.get(names.KIND, "a", "v")
        assert live is not None
        reconcilers.observe(live)
        reconcilers.observe(
            {**live, **change, "metadata": {**live["metadata"], **change.get("metadata", {})}}
        )
        await reconcilers.stop()
        return reconcilers.woken

    assert asyncio.run(notice()) == wakes


def test_a_round_that_ends_is_counted(operator: Operating) -> None:
    """By how it ended, with the phase that it found."""
    from prometheus_client import generate_latest

    asyncio.run(operator.run_pass(make_map))
    text = generate_latest(operator.metrics.registry).decode()
    assert 'qt_reconcile_total{result="ok"} 1.0' in text
    assert 'qt_phase{name="v",namespace="a",phase="Ready"} 1.0' in text
    assert operator.health.problem() is None
