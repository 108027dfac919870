"""Reconcile resources: observe, plan, execute, and again.

A pass begins after a change, or when the last pass asked for it. No pass needs results of an earlier one. After a failed pass
the next one backs off. A failure is logged once, and is an event if a user can fix it.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from queryable_operator.act.cluster import Cluster, ClusterError
from queryable_operator.act.executor import Executor, StaleObservation
from queryable_operator.act.metrics import Health, Metrics
from queryable_operator.act.nodes import Nodes
from queryable_operator.act.observer import Observer
from queryable_operator.act.supervision import supervised
from queryable_operator.act.topics import Topics
from queryable_operator.act.watch_cache import ResourceKey, WatchCache
from queryable_operator.decide.actions import Event, Plan
from queryable_operator.spec import names
from queryable_operator.spec.observed import Manifest, Observed
from queryable_operator.spec.settings import OperatorSettings

Planner = Callable[[Observed, OperatorSettings], Plan]

_GATHER_SECONDS: Final = 0.2  # changes come in groups
_BACK_OFF_SECONDS: Final = 0.5
_BACK_OFF_SECONDS_MAX: Final = 60.0
_FOREIGN_FINALIZER_SECONDS: Final = 60.0  # only other finalizers hold the resource

_LOG: Final = logging.getLogger("queryable_operator")


@dataclass(frozen=True, slots=True)
class Dependencies:
    """Hold what all reconcilers share."""

    cluster: Cluster
    watch_cache: WatchCache
    nodes: Nodes
    topics: Topics
    metrics: Metrics
    health: Health
    settings: OperatorSettings
    plan: Planner
    interval_seconds: float
    """The longest time between two passes."""


class Reconciler:
    """Reconcile one resource."""

    def __init__(self, key: ResourceKey, dependencies: Dependencies) -> None:
        self._key = key
        self._dependencies = dependencies
        self._log = logging.LoggerAdapter(_LOG, {"namespace": key[0], "object": key[1]})
        self._changed = asyncio.Event()
        self._failures = 0
        self._last_error: str | None = None
        self._uid = ""
        self._reset()

    def wake(self) -> None:
        self._changed.set()

    async def run(self) -> None:
        """Run passes until the resource is gone."""
        while (seconds := await self.run_pass()) is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), seconds)
            await asyncio.sleep(_GATHER_SECONDS if not self._failures else min(seconds, _BACK_OFF_SECONDS))
            self._changed.clear()
        self._dependencies.metrics.forget(self._key)
        self._dependencies.health.forget(self._key)

    async def run_pass(self) -> float | None:
        """Run one pass. Return the seconds until the next one, or None if the resource is gone."""
        began = time.monotonic()
        resource: Manifest | None = None
        try:
            resource = await self._dependencies.cluster.get(names.KIND, *self._key)
            if resource is None:
                return None
            requeue_seconds = await self._reconcile(resource)
            result = "ok"
            self._failures, self._last_error = 0, None
        except StaleObservation as error:
            self._log.info("%s", error)
            result, requeue_seconds = "conflict", self._back_off()
        except ClusterError as error:
            result = "conflict" if error.conflict else "error"
            requeue_seconds = max(self._back_off(), error.retry_after_seconds)
            await self._report(error, resource)
        except Exception as error:  # a defect; other resources continue, and this one after a back-off
            result, requeue_seconds = "error", self._back_off()
            if self._last_error != repr(error):
                self._last_error = repr(error)
                self._log.exception("A reconcile pass failed, which is a defect of the operator")
        self._dependencies.metrics.observe_pass(self._key, result, time.monotonic() - began)
        self._dependencies.health.finished(self._key)
        return requeue_seconds

    async def _reconcile(self, resource: Manifest) -> float:
        meta = resource["metadata"]
        if meta["uid"] != self._uid:
            self._uid = meta["uid"]
            self._reset()
        finalizers = meta.get("finalizers", ())
        if names.FINALIZER not in finalizers:
            if "deletionTimestamp" in meta:
                return _FOREIGN_FINALIZER_SECONDS
            resource = await self._dependencies.cluster.set_finalizers(
                resource, [*finalizers, names.FINALIZER]
            )
        observation = await self._observer.observe(resource)
        plan = self._dependencies.plan(observation.observed, self._dependencies.settings)
        last_phase, phase = (
            status.get("phase") for status in (resource.get("status", {}), plan.status or {})
        )
        if plan.status is not None and phase != last_phase:
            self._log.info("%s, after %s", phase, last_phase or "nothing")
        acted = await self._executor.execute(plan, observation)
        self._dependencies.metrics.observe_decision(
            self._key, plan.status or resource.get("status", {}), plan.events
        )
        interval = self._dependencies.interval_seconds
        if not acted and not observation.nodes:
            return interval  # without nodes to request, a watch event starts the next pass
        return max(_GATHER_SECONDS, min(plan.requeue_seconds, interval))

    def _reset(self) -> None:
        """Forget everything, for a new resource or one that was created again with the same name."""
        dependencies = self._dependencies
        self._observer = Observer(
            self._key,
            dependencies.cluster,
            dependencies.watch_cache,
            dependencies.nodes,
            dependencies.topics,
        )
        self._executor = Executor(
            self._key,
            dependencies.cluster,
            dependencies.nodes,
            dependencies.topics,
            self._observer,
            self._log,
        )

    def _back_off(self) -> float:
        seconds = min(_BACK_OFF_SECONDS_MAX, _BACK_OFF_SECONDS * 2.0**self._failures)
        self._failures = min(self._failures + 1, 16)
        return seconds * random.uniform(0.5, 1.0)  # noqa: S311

    async def _report(self, error: ClusterError, resource: Manifest | None) -> None:
        if self._last_error == str(error):
            return
        self._last_error = str(error)
        if error.conflict:
            self._log.info("%s", error)
        elif 400 <= error.status < 500 and error.status != 429 and resource is not None:
            await self._executor.post(Event("Warning", "ReconcileFailed", str(error)), resource)
        else:
            self._log.warning("%s", error)


class Reconcilers:
    """Run one reconciler for each resource."""

    def __init__(self) -> None:
        self.dependencies: Dependencies
        self._running: dict[ResourceKey, tuple[Reconciler, asyncio.Task[None]]] = {}
        self._seen: dict[ResourceKey, tuple[str, tuple[Any, ...]]] = {}
        self._recreated: set[ResourceKey] = set()

    def observe(self, resource: Mapping[str, Any]) -> None:
        """Start the reconciler of a new resource, or wake it after a change."""
        meta = resource["metadata"]
        key = (meta["namespace"], meta["name"])
        users_part = (
            meta["uid"],
            meta.get("generation"),
            meta.get("deletionTimestamp"),
            meta.get("annotations"),
            meta.get("finalizers"),
        )
        before = self._seen.get(key)
        self._seen[key] = (meta["resourceVersion"], users_part)
        if key not in self._running:
            self._start(key)
        elif before is None or before[1] != users_part:  # the operator's own status writes are no change
            if before is None or before[1][0] != meta["uid"]:
                self._recreated.add(key)
            self.wake(key)

    def deleted(self, key: ResourceKey) -> None:
        """Wake the reconciler of a deleted resource, which then ends."""
        self._seen.pop(key, None)
        self.wake(key)

    def wake(self, key: ResourceKey) -> None:
        if key in self._running:
            self._running[key][0].wake()

    def known(self) -> dict[ResourceKey, str]:
        """Return the `resourceVersion` that the watch has brought, by namespace and name."""
        return {key: version for key, (version, _) in self._seen.items()}

    async def stop(self) -> None:
        tasks = [task for _, task in self._running.values()]
        self._recreated.clear()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _start(self, key: ResourceKey) -> None:
        reconciler = Reconciler(key, self.dependencies)
        name = f"The reconciler of {key[0]}/{key[1]}"
        task = asyncio.create_task(supervised(name, reconciler.run), name=name)
        self._running[key] = (reconciler, task)
        task.add_done_callback(lambda _: self._ended(key))

    def _ended(self, key: ResourceKey) -> None:
        """Clean up after a reconciler, or start it again if the resource was recreated meanwhile."""
        del self._running[key]
        if key in self._recreated:
            self._recreated.discard(key)
            self._start(key)
        else:
            self._seen.pop(key, None)
