"""Test the wiring of kopf in one process, against a fake API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import kopf
import pytest

from queryable_operator.act import handlers
from queryable_operator.act.reconciler import Reconcilers
from queryable_operator.act.watch_cache import WatchCache
from queryable_operator.decide.actions import Plan
from queryable_operator.spec import names
from queryable_operator.spec.observed import Observed, Ref
from tests.support.fake_api import FakeApi, Object, Refuse, Request
from tests.support.operating import Operating, config_map, topic, until

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

MAP = ("ConfigMap", "a", "v-r1")


@asynccontextmanager
async def _running(operator: Operating, *namespaces: str) -> AsyncIterator[asyncio.Task[None]]:
    reconcilers = Reconcilers()
    watch_cache = WatchCache(not namespaces, reconcilers.wake)
    reconcilers.dependencies = kopf_tools = operator.dependencies.__class__(
        **{name: getattr(operator.dependencies, name) for name in operator.dependencies.__slots__}
        | {"watch_cache": watch_cache}
    )
    kinds = handlers.kinds(namespaces)
    stop = asyncio.Event()
    task = asyncio.create_task(
        kopf.operator(
            registry=handlers.registry(kopf_tools.cluster, reconcilers, watch_cache, kinds),
            settings=handlers.settings(),
            stop_flag=stop,
            **handlers.namespaced(namespaces),
        )
    )
    try:
        yield task
    finally:
        stop.set()
        await asyncio.wait_for(task, 30)


def _make(observed: Observed) -> Plan:
    deleting = "deletionTimestamp" in observed.resource["metadata"]
    return (
        Plan(remove_finalizer=True)
        if deleting
        else Plan(apply=(config_map(observed, one="1"),), requeue_seconds=10)
    )


def _run(operator: Operating, story: Callable[[FakeApi], Any], *namespaces: str) -> None:
    operator.plan = _make

    async def run() -> None:
        async with _running(operator, *namespaces):
            await story(operator.api)

    asyncio.run(run())


def _data(api: FakeApi) -> object:
    live = api.get(*MAP)
    return live["data"] if live else None


def test_resource_gets_its_children(operator: Operating) -> None:
    """Resources that exist at the start and resources created later are reconciled."""

    async def story(api: FakeApi) -> None:
        await until(lambda: _data(api) == {"one": "1"})
        api.put(topic("w"))
        await until(lambda: api.get("ConfigMap", "a", "w-r1"))

    _run(operator, story)


def test_edited_child_starts_a_pass(operator: Operating) -> None:
    """An edit does not wait for the next periodic pass."""

    async def story(api: FakeApi) -> None:
        await until(lambda: _data(api))
        live = api.get(*MAP)
        assert live is not None
        api.put({**live, "data": {"one": "a user's"}})
        await until(lambda: _data(api) == {"one": "1"})

    _run(operator, story)


def test_deleted_child_starts_a_pass(operator: Operating) -> None:
    """A deleted child is recreated at once."""

    async def story(api: FakeApi) -> None:
        await until(lambda: _data(api))
        api.delete(*MAP)
        await until(lambda: _data(api))

    _run(operator, story)


def test_deleted_resource_loses_its_finalizer(operator: Operating) -> None:
    """The operator removes the finalizer of a deleted resource, also of one deleted while no operator ran."""
    live = topic("before")
    live["metadata"] |= {"finalizers": [names.FINALIZER], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    operator.api.put(live)

    async def story(api: FakeApi) -> None:
        await until(lambda: api.get(names.KIND, "a", "before") is None)
        await until(lambda: _data(api))
        api.delete(names.KIND, "a", "v")
        await until(lambda: api.get(names.KIND, "a", "v") is None)

    _run(operator, story)


def test_kopf_stores_nothing_in_the_resource(operator: Operating) -> None:
    """The resource has our finalizer only, and no other write reaches it."""

    async def story(api: FakeApi) -> None:
        await until(lambda: _data(api))
        live = api.get(names.KIND, "a", "v")
        assert live is not None
        api.put({**live, "spec": {**live["spec"], "topic": "another"}})
        await until(lambda: operator.observed[-1].resource["spec"]["topic"] == "another")

    _run(operator, story)
    meta = operator.api.get(names.KIND, "a", "v")["metadata"]  # type: ignore[index]
    assert (meta.get("annotations"), meta["finalizers"]) == (None, [names.FINALIZER])
    assert len([r for r in operator.api.writes() if r.plural == names.PLURAL]) == 1


def test_no_plan_before_all_kinds_are_listed(operator: Operating) -> None:
    """A slow list does not make the plan recreate existing children."""
    released = asyncio.Event()

    def order(request: Request) -> None:
        if request.plural == "pods" and not released.is_set():
            raise Refuse(500, "not yet")

    meta = {"name": "v-r1", "namespace": "a", "labels": names.revision_labels("v", 1)}
    operator.api.put({"apiVersion": "v1", "kind": "Service", "metadata": meta})
    operator.api.order = order

    async def story(api: FakeApi) -> None:
        await until(lambda: any(r.plural == "services" for r in api.requests))
        await asyncio.sleep(0.1)
        assert operator.observed == []
        released.set()
        await until(lambda: operator.observed)

    _run(operator, story)
    assert operator.observed[0].name_conflicts == {Ref("Service", "v-r1")}


def test_watches_select_our_label(operator: Operating) -> None:
    """The API server sends no objects without our label."""

    async def story(api: FakeApi) -> None:
        await until(lambda: _data(api))

    _run(operator, story)
    lists = [r for r in operator.api.requests if not r.name and r.method == "GET" and r.plural != "nodes"]
    assert {r.query.get("labelSelector") for r in lists if r.plural != names.PLURAL} == {names.VIEW_LABEL}


def test_only_named_namespaces_are_watched(operator: Operating) -> None:
    """A namespaced operator watches no Kubernetes nodes."""
    operator.api.put(topic("elsewhere", namespace="c"))

    async def story(api: FakeApi) -> None:
        await until(lambda: _data(api))

    _run(operator, story, "a", "b")
    assert {r.namespace for r in operator.api.requests} <= {"a", "b"}
    assert "nodes" not in {r.plural for r in operator.api.requests}
    assert {observed.hosts for observed in operator.observed} == {None}


def test_failed_watch_restarts(operator: Operating) -> None:
    """After 410 the watch lists again, and after 500 it retries."""
    failed: list[int] = []

    def order(request: Request) -> None:
        if request.query.get("watch") and request.plural == "configmaps" and len(failed) < 2:
            failed.append(410 if not failed else 500)
            raise Refuse(failed[-1], "the version is too old")

    operator.api.order = order

    async def story(api: FakeApi) -> None:
        await until(lambda: len(failed) == 2 and _data(api))
        api.delete(*MAP)
        await until(lambda: _data(api))

    _run(operator, story)


def test_passes_resume_after_a_hanging_api_server(operator: Operating) -> None:
    """Passes fail while the API server hangs and succeed afterwards."""
    hanging = {"is": True}

    def order(request: Request) -> None:
        if hanging["is"] and request.plural == "configmaps" and request.writes:
            raise Refuse(503, "the leader of etcd is being chosen")

    operator.api.order = order

    async def story(api: FakeApi) -> None:
        await until(lambda: len(api.writes()) > 2)
        assert _data(api) is None
        hanging["is"] = False
        await until(lambda: _data(api))

    _run(operator, story)


def test_failing_resource_does_not_block_others(operator: Operating) -> None:
    """A resource whose passes fail does not delay the others."""
    operator.api.put(topic("w"))

    def plan(observed: Observed) -> Plan:
        if observed.resource["metadata"]["name"] == "w":
            raise RuntimeError("a defect")
        return _make(observed)

    async def story(api: FakeApi) -> None:
        operator.plan = plan
        live: Object | None = api.get(names.KIND, "a", "v")
        assert live is not None
        api.put({**live, "spec": {**live["spec"], "replicas": 2}})
        await until(lambda: operator.observed and operator.observed[-1].resource["metadata"]["name"] == "v")
        await until(lambda: _data(api))

    _run(operator, story)
