"""Configure kopf: what it watches, and which reconciler an event wakes. Nothing is decided here.

kopf carries the watches and waits until all of them have listed what exists; then each resource gets its own task. kopf's own
change handling is not used: it stores its state in the user's object, and it does not restart a daemon for a resource that was
deleted while no operator ran.
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
    """Return the kinds to watch beside the resource. Kubernetes nodes are cluster-scoped: only a cluster-wide operator watches
    them."""
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
            reconcilers.deleted((live["metadata"]["namespace"], live["metadata"]["name"]))
        else:
            reconcilers.observe(live)

    for kind in watched_kinds:
        _watch(wiring, kind, KINDS[kind], watch_cache)
    return wiring


def _watch(wiring: kopf.OperatorRegistry, kind: str, where: Kind, watch_cache: WatchCache) -> None:
    selector = (where.group, where.version, where.plural)

    # This index stays empty. It makes kopf list all objects before it calls a handler.
    @kopf.index(*selector, registry=wiring, id=f"{kind} seen")
    async def seen(body: Any, **_: Any) -> None:
        watch_cache.put(kind, dict(body))

    @kopf.on.event(*selector, registry=wiring, id=f"{kind} gone")
    async def gone(event: Any, **_: Any) -> None:
        if event["type"] == "DELETED":
            meta = event["object"]["metadata"]
            watch_cache.remove(kind, meta.get("namespace", ""), meta["name"])


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
    chosen.scanning.disabled = True  # the CRD exists before the start, and namespaces are fixed or all
    chosen.posting.enabled = False  # the plan decides events
    chosen.peering.standalone = True
    chosen.queueing.idle_timeout = 1.0
    chosen.process.ultimate_exiting_timeout = 20
    # Unused, but kopf removes a finalizer with this name, so it must not be the operator's own.
    chosen.persistence.finalizer = f"{names.GROUP}/watch"
    chosen.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=names.GROUP)
    chosen.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=names.GROUP)
    return chosen


class _Backoffs:
    """Retry an unreachable API server without end."""

    def __iter__(self) -> Iterator[float]:
        yield from (1.0, 2.0, 4.0, 8.0)
        while True:
            yield 15.0


def namespaced(namespaces: Sequence[str]) -> Mapping[str, Any]:
    """Return the namespace arguments of `kopf.operator`."""
    return {"namespaces": list(namespaces)} if namespaces else {"clusterwide": True}
