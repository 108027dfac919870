"""What kopf is told to watch, and whom it wakes. Nothing is decided here.

Strategy: kopf carries the watches and says when all of them have brought what there is; then each resource gets a task of
its own. kopf's own handling of changes stays out of it: it would keep its notes in the user's object, and a daemon of
kopf is not started again for a resource that is being deleted when the operator was not there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import kopf

from queryable_operator.act.cluster import KINDS, Cluster, Kind
from queryable_operator.act.reconciler import Reconcilers
from queryable_operator.act.watch_cache import WatchCache
from queryable_operator.spec import names

CHILDREN: Final = (
    "ConfigMap",
    "EndpointSlice",
    "NetworkPolicy",
    "PersistentVolumeClaim",
    "Pod",
    "PodDisruptionBudget",
    "Service",
    "ServiceAccount",
    "StatefulSet",
)


def kinds(namespaces: Sequence[str]) -> tuple[str, ...]:
    """What is watched beside the resource. Nodes belong to no namespace: they are seen by whoever sees all."""
    return CHILDREN if namespaces else (*CHILDREN, "Node")


def registry(
    cluster: Cluster, reconcilers: Reconcilers, watch_cache: WatchCache, watched_kinds: Sequence[str]
) -> kopf.OperatorRegistry:
    wiring = kopf.OperatorRegistry()

    @kopf.on.login(registry=wiring, id="login")
    async def login(**_: Any) -> kopf.ConnectionInfo:
        return kopf.ConnectionInfo(**cluster.connection())

    @kopf.on.cleanup(registry=wiring, id="stop")
    async def stop(**_: Any) -> None:
        await reconcilers.stop()

    @kopf.on.event(names.GROUP, names.VERSION, names.PLURAL, registry=wiring, id="resource")
    async def resource_changed(event: Any, **_: Any) -> None:
        live = event["object"]
        if event["type"] == "DELETED":
            reconcilers.gone((live["metadata"]["namespace"], live["metadata"]["name"]))
        else:
            reconcilers.observe(live)

    for kind in watched_kinds:
        _watch(wiring, kind, KINDS[kind], watch_cache)
    return wiring


def _watch(wiring: kopf.OperatorRegistry, kind: str, where: Kind, watch_cache: WatchCache) -> None:
    selector = (where.group, where.version, where.plural)

    # An index that is left empty: kopf runs no handler before all that is indexed has been listed.
    @kopf.index(*selector, registry=wiring, id=f"{kind} seen")
    async def seen(body: Any, **_: Any) -> None:
        watch_cache.put(kind, dict(body))

    @kopf.on.event(*selector, registry=wiring, id=f"{kind} gone")
    async def gone(event: Any, **_: Any) -> None:
        if event["type"] == "DELETED":
            meta = event["object"]["metadata"]
            watch_cache.gone(kind, meta.get("namespace", ""), meta["name"])


def settings() -> kopf.OperatorSettings:
    chosen = kopf.OperatorSettings()
    for kind in CHILDREN:
        where = KINDS[kind]
        chosen.watching.label_selectors[where.group, where.version, where.plural] = names.VIEW_LABEL
    chosen.watching.chunk_size = 500
    chosen.watching.server_timeout = 600
    chosen.watching.connect_timeout = 10
    chosen.networking.request_timeout = 60
    chosen.networking.error_backoffs = _Backoffs()
    chosen.scanning.disabled = True  # the definition is there when we begin, and namespaces are named or all
    chosen.posting.enabled = False  # events are the plan's
    chosen.peering.standalone = True
    chosen.queueing.idle_timeout = 1.0
    chosen.process.ultimate_exiting_timeout = 20
    # Not used, since nothing here needs it; kopf takes away what bears its own finalizer's name and what it does not need.
    chosen.persistence.finalizer = f"{names.GROUP}/watch"
    chosen.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=names.GROUP)
    chosen.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=names.GROUP)
    return chosen


class _Backoffs:
    """An API server that is away is waited for; there is no last attempt."""

    def __iter__(self) -> Iterator[float]:
        yield from (1.0, 2.0, 4.0, 8.0)
        while True:
            yield 15.0


def namespaced(namespaces: Sequence[str]) -> Mapping[str, Any]:
    """Arguments of `kopf.operator`."""
    return {"namespaces": list(namespaces)} if namespaces else {"clusterwide": True}
