"""Run the operator's reconciler for one resource, with a fake API server and the test's plan."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from queryable_operator.act.cluster import Cluster
from queryable_operator.act.handlers import CHILDREN
from queryable_operator.act.metrics import Health, Metrics
from queryable_operator.act.nodes import Nodes
from queryable_operator.act.reconciler import Dependencies, Reconciler
from queryable_operator.act.topics import Topics
from queryable_operator.act.watch_cache import WatchCache
from queryable_operator.build.children import child
from queryable_operator.decide.actions import Plan
from queryable_operator.spec import names
from queryable_operator.spec.observed import Manifest, Observed, Ref
from queryable_operator.spec.resource import identity_of
from queryable_operator.spec.settings import OperatorSettings
from tests.support import waiting
from tests.support.fake_api import FakeApi, Object, fake_api

MAP = Ref("ConfigMap", "v-r1")
_DEADLINE_SECONDS = 60.0


def topic(name: str = "v", namespace: str = "a", **spec: Any) -> Object:
    """Return a QueryableTopic whose Kafka is unreachable."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"topic": "users", "kafka": {"bootstrapServers": "127.0.0.1:1"}, **spec},
    }


def config_map(observed: Observed, revision: int = 1, **data: str) -> Manifest:
    return child(identity_of(observed.resource), revision, "ConfigMap", {"data": data})


def make_map(observed: Observed) -> Plan:
    """Return the plan of a resource that settles: one child, `MAP`."""
    return Plan(apply=(config_map(observed, one="1"),), status={"phase": "Ready"})


class Operating:
    """Run passes of one resource, `a/v`. `plan` is the test's; by default it has no actions."""

    def __init__(self, api: FakeApi) -> None:
        self.api = api
        self.plan: Callable[[Observed], Plan] = lambda _: Plan()
        self.observed: list[Observed] = []
        self.watch_cache = WatchCache(True, lambda _: None)
        self.health, self.metrics = Health(), Metrics()
        self.cluster = Cluster(api.configuration())
        dependencies = Dependencies(
            self.cluster,
            self.watch_cache,
            Nodes(),
            Topics(),
            self.metrics,
            self.health,
            OperatorSettings("image"),
            self._plan,
            10.0,
        )
        self.dependencies = dependencies
        self.reconciler = Reconciler(("a", "v"), dependencies)

    async def run_pass(self, plan: Callable[[Observed], Plan] | None = None) -> float | None:
        """Run one pass, after the watches have brought everything."""
        if plan is not None:
            self.plan = plan
        self.bring()
        return await self.reconciler.run_pass()

    def bring(self) -> None:
        for kind in CHILDREN:
            there = {(live["metadata"]["namespace"], live["metadata"]["name"]) for live in self.api.all(kind)}
            for place in self.watch_cache.known(kind).keys() - there:
                self.watch_cache.remove(kind, *place)
            for live in self.api.all(kind):
                if names.VIEW_LABEL in live["metadata"].get("labels", {}):
                    self.watch_cache.put(kind, json.loads(json.dumps(live)))

    def _plan(self, observed: Observed, _: OperatorSettings) -> Plan:
        self.observed.append(observed)
        return self.plan(observed)


@contextmanager
def operating() -> Iterator[Operating]:
    with fake_api() as api:
        api.put(topic())
        operator = Operating(api)
        yield operator
        operator.cluster.close()


async def until(condition: Callable[[], object]) -> None:
    await waiting.until("the operator has acted", condition, _DEADLINE_SECONDS)
