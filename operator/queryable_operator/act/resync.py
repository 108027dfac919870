"""Compare the watch cache with lists from the API server.

A restarted watch lists what exists and does not report deletions, so objects that are no longer listed are removed here. An
object that a watch has still not brought at the next comparison shows a dead watch, and health fails.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from queryable_operator.act.cluster import Cluster, ClusterError
from queryable_operator.act.metrics import Health
from queryable_operator.act.reconciler import Reconcilers
from queryable_operator.act.watch_cache import WatchCache
from queryable_operator.spec import names

_EVERY_SECONDS: Final = 120.0

_LOG: Final = logging.getLogger("queryable_operator.act.resync")

Versions = Mapping[tuple[str, str], str]


@dataclass(slots=True)
class Resync:
    cluster: Cluster
    watch_cache: WatchCache
    reconcilers: Reconcilers
    health: Health
    kinds: Sequence[str]
    namespaces: Sequence[str]  # empty: all
    # by kind: listed versions that the watch had not brought, with the version that it knew
    _late: dict[str, dict[tuple[str, str], str | None]] = field(default_factory=dict)

    async def run(self) -> None:
        """Compare periodically. Never returns."""
        while True:
            await asyncio.sleep(_EVERY_SECONDS)
            try:
                await self.once()
            except ClusterError as error:
                _LOG.warning("%s", error)

    async def once(self) -> None:
        problem = None
        for kind in (*self.kinds, names.KIND):
            known, remove = self._accessors(kind)
            before = known()
            listed: dict[tuple[str, str], str] = {}
            for namespace in self.namespaces or (None,):
                listed |= await self.cluster.versions(kind, None if kind == "Node" else namespace)
            now = known()
            for place in before.keys() - listed.keys():
                if now.get(place) == before[place]:
                    _LOG.info("%s %s/%s was deleted without a watch event", kind, *place)
                    remove(*place)
            late = {
                place: now.get(place)
                for place in listed
                if before.get(place) == now.get(place) != listed[place]
            }
            if late.items() & self._late.get(kind, {}).items():
                problem = f"the watch of {kind} has missed a change for {_EVERY_SECONDS:g} s"
            self._late[kind] = late
        self.health.set_watch_problem(problem)

    def _accessors(self, kind: str) -> tuple[Callable[[], Versions], Callable[[str, str], None]]:
        if kind == names.KIND:
            return self.reconcilers.known, lambda namespace, name: self.reconcilers.deleted((namespace, name))
        return lambda: self.watch_cache.known(kind), lambda namespace, name: self.watch_cache.remove(
            kind, namespace, name
        )
