"""Which of several operators acts: the one that holds the Lease.

Strategy: nobody compares clocks of two machines. Whoever waits watches the record, and takes it over when it has not
changed for its whole term by his own clock. Whoever holds it and cannot renew it in time ends, well before another may
begin.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from datetime import UTC, datetime
from typing import Any, Final

from queryable_operator.act.cluster import Cluster, ClusterError
from queryable_operator.spec.observed import Manifest

TERM_SECONDS: Final = 15
_RENEW_WITHIN_SECONDS: Final = 10.0
_RETRY_SECONDS: Final = 2.0

_LOG: Final = logging.getLogger("queryable_operator.act.election")


class LeaseLost(Exception):
    """Another operator may act now, so this one must not."""


class Election:
    def __init__(self, cluster: Cluster, namespace: str, name: str, identity: str) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._held: Manifest | None = None

    async def acquire(self) -> None:
        """Returns once this operator is the one that acts."""
        record: object = None
        since, said = time.monotonic(), ""
        while True:
            try:
                lease = await self._cluster.get("Lease", self._namespace, self._name)
                spec = dict(lease["spec"]) if lease else {}
                if spec != record:
                    record, since = spec, time.monotonic()
                holder = spec.get("holderIdentity") or ""
                term = spec.get("leaseDurationSeconds") or TERM_SECONDS
                if holder in ("", self._identity) or time.monotonic() - since > term:
                    if await self._take(lease, spec):
                        _LOG.info(
                            "This operator acts now: it holds the Lease %s/%s", self._namespace, self._name
                        )
                        return
                elif holder != said:
                    said = holder
                    _LOG.info("Standing by: %s holds the Lease %s/%s", holder, self._namespace, self._name)
            except ClusterError as error:
                _LOG.warning("%s", error)
            await asyncio.sleep(_RETRY_SECONDS * random.uniform(0.8, 1.2))  # noqa: S311

    async def keep(self) -> None:
        """Renews until that fails for too long. Never returns; raises LeaseLost."""
        renewed = time.monotonic()
        while True:
            await asyncio.sleep(_RETRY_SECONDS)
            left = renewed + _RENEW_WITHIN_SECONDS - time.monotonic()
            started = time.monotonic()
            try:
                async with asyncio.timeout(max(0.0, left)):
                    await self._renew()
                renewed = started
            except (ClusterError, TimeoutError) as error:
                _LOG.warning("The Lease could not be renewed: %s", str(error) or "the API server is slow")
                if time.monotonic() - renewed >= _RENEW_WITHIN_SECONDS:
                    raise LeaseLost(
                        f"the Lease {self._namespace}/{self._name} could not be renewed for {_RENEW_WITHIN_SECONDS:g} s"
                    ) from error

    async def release(self) -> None:
        """So that another one need not wait for the end of the term."""
        if self._held is None:
            return
        spec = {**self._held["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
        try:
            await self._cluster.replace(self._namespace, {**self._held, "spec": spec})
        except ClusterError as error:
            _LOG.info("%s", error)
        self._held = None

    async def _take(self, lease: Manifest | None, spec: dict[str, Any]) -> bool:
        wanted = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": lease["metadata"] if lease else {"name": self._name, "namespace": self._namespace},
            "spec": {
                "holderIdentity": self._identity,
                "leaseDurationSeconds": TERM_SECONDS,
                "acquireTime": _now(),
                "renewTime": _now(),
                "leaseTransitions": spec.get("leaseTransitions", -1) + 1,
            },
        }
        try:
            if lease is None:
                self._held = await self._cluster.create(self._namespace, wanted)
            else:
                self._held = await self._cluster.replace(self._namespace, wanted)
        except ClusterError as error:
            if not error.conflict:
                raise
        return self._held is not None

    async def _renew(self) -> None:
        held = self._held
        assert held is not None
        try:
            spec = {**held["spec"], "renewTime": _now()}
            self._held = await self._cluster.replace(self._namespace, {**held, "spec": spec})
        except ClusterError as error:
            if not error.conflict and not error.absent:
                raise
            # A write of ours that had no answer, or somebody else.
            lease = await self._cluster.get("Lease", self._namespace, self._name)
            holder = lease["spec"].get("holderIdentity") if lease else None
            if holder != self._identity or lease is None:
                raise LeaseLost(
                    f"the Lease {self._namespace}/{self._name} is held by {holder or 'nobody'}"
                ) from error
            self._held = lease


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
