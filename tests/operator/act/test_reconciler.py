"""Test when passes begin and how they end, with plans of the test and a fake API server."""

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


def test_finalizer_is_set_first(operator: Operating) -> None:
    """No object is created before the resource has the finalizer."""
    asyncio.run(operator.run_pass(make_map))
    first, second, *_ = operator.api.writes()
    assert first.body["metadata"]["finalizers"] == [names.FINALIZER]
    assert second.plural == "configmaps"


def test_refused_request_ends_the_pass_with_one_event(operator: Operating) -> None:
    """After a refused request the pass ends, and one event has the reason."""

    def order(request: Request) -> None:
        if request.plural == "configmaps" and request.writes:
            raise Refuse(403, "exceeded quota")

    async def passes() -> list[float | None]:
        operator.api.order = order
        return [await operator.run_pass(make_map) for _ in range(3)]

    seconds = asyncio.run(passes())
    assert "status" not in operator.api.get(names.KIND, "a", "v")  # type: ignore[operator]
    (event,) = operator.api.all("Event")
    assert (event["type"], event["reason"]) == ("Warning", "ReconcileFailed")
    assert event["message"] == "cannot apply ConfigMap v-r1 in a: exceeded quota"
    assert all(later is not None and later <= 60 for later in seconds)


def test_failed_passes_back_off(operator: Operating) -> None:
    """The back-off doubles up to a minute, and a successful pass resets it."""

    def broken(_: Observed) -> Plan:
        raise RuntimeError("a defect")

    async def passes() -> tuple[list[float | None], float | None]:
        seconds = [await operator.run_pass(broken) for _ in range(12)]
        return seconds, await operator.run_pass(lambda _: Plan(clean_kafka=True, requeue_seconds=3))

    seconds, after = asyncio.run(passes())
    assert seconds[0] is not None
    assert seconds[0] <= 0.5
    assert seconds[-1] is not None
    assert 30 <= seconds[-1] <= 60
    assert after == 3


def test_resource_without_nodes_waits_for_a_change(operator: Operating) -> None:
    """Without nodes to request and actions to take, the next pass comes after the longest interval."""

    def busy(observed: Observed) -> Plan:
        return Plan(apply=(config_map(observed),), requeue_seconds=1)

    async def passes() -> list[float | None]:
        return [await operator.run_pass(busy) for _ in range(2)]

    assert asyncio.run(passes()) == [1, 10]


def test_retry_after_delays_the_next_pass(operator: Operating) -> None:
    """The API server's Retry-After is a lower bound for the next pass."""

    def order(request: Request) -> None:
        if request.writes:
            raise Refuse(429, "too many requests", Retry_After="42")

    operator.api.order = order
    assert asyncio.run(operator.run_pass(make_map)) == 42
    assert operator.api.all("Event") == []


def test_deleted_resource_ends_its_passes(operator: Operating) -> None:
    """A pass returns None for a deleted resource."""
    operator.api.delete(names.KIND, "a", "v")
    assert asyncio.run(operator.run_pass()) is None


def test_foreign_finalizer_is_left_alone(operator: Operating) -> None:
    """A deleted resource that only other finalizers hold is not written."""
    live = topic()
    live["metadata"] |= {"finalizers": ["example.com/theirs"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    operator.api.put(live)
    asyncio.run(operator.run_pass(make_map))
    assert operator.api.writes() == []


def test_missing_secret_is_reported_without_values(operator: Operating) -> None:
    """The Kafka settings are invalid until the Secret exists; its digest shows a change."""
    spec = {"kafka": {"bootstrapServers": "127.0.0.1:1", "secretRef": {"name": "client"}}}
    live = operator.api.get(names.KIND, "a", "v")
    assert live is not None
    operator.api.put({**live, "spec": {**live["spec"], **spec}})
    meta = {"name": "client", "namespace": "a"}
    password = base64.b64encode(b"hunter2").decode()
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": {"sasl.jaas.config": password}}

    async def passes() -> None:
        await operator.run_pass()
        operator.api.put(secret)
        await operator.run_pass()

    asyncio.run(passes())
    first, second = operator.observed
    assert first.topic == KafkaSettingsInvalid("the Secret client does not exist")
    assert (first.kafka_secret_digest, len(second.kafka_secret_digest)) == ("", 64)
    assert "hunter2" not in repr(second)
    assert password not in json.dumps(operator.api.all("Event"))


def test_recreated_resource_starts_without_memory(operator: Operating) -> None:
    """A failed cleanup of the earlier resource does not concern the new one."""

    async def passes() -> None:
        await operator.run_pass(lambda _: Plan(clean_kafka=True))
        await operator.run_pass(lambda _: Plan(remove_finalizer=True))
        operator.api.delete(names.KIND, "a", "v")
        operator.api.put(topic())
        await operator.run_pass(make_map)

    asyncio.run(passes())
    _, cleaned, afresh = operator.observed
    assert cleaned.kafka_cleanup_error is not None
    assert afresh.kafka_cleanup_error is None
    owner = operator.api.get(MAP.kind, "a", MAP.name)["metadata"]["ownerReferences"][0]  # type: ignore[index]
    assert owner["uid"] == operator.api.get(names.KIND, "a", "v")["metadata"]["uid"]  # type: ignore[index]


def test_resource_recreated_during_its_deletion_is_reconciled(operator: Operating) -> None:
    """A resource whose creation is observed during the pass that ends the earlier one is reconciled."""
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

    async def passes() -> None:
        live = operator.api.get(names.KIND, "a", "v")
        assert live is not None
        reconcilers.observe(live)
        await until(lambda: operator.observed)
        operator.api.objects.clear()
        reconcilers.deleted(("a", "v"))
        await until(lambda: came and operator.observed[-1].resource["metadata"]["uid"] == came[0])
        await reconcilers.stop()

    asyncio.run(passes())


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
def test_status_change_starts_no_pass(operator: Operating, change: dict[str, Any], wakes: bool) -> None:
    """An event with a new status only starts no pass; a user's change does."""

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


def test_pass_is_counted(operator: Operating) -> None:
    """Each pass is counted by its result, with the phase of the resource."""
    from prometheus_client import generate_latest

    asyncio.run(operator.run_pass(make_map))
    text = generate_latest(operator.metrics.registry).decode()
    assert 'qt_reconcile_total{result="ok"} 1.0' in text
    assert 'qt_phase{name="v",namespace="a",phase="Ready"} 1.0' in text
    assert operator.health.problem() is None
