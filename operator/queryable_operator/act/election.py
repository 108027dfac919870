"""Elect the one of several operators that acts: the holder of the Lease.

Clocks of two machines are never compared. A standby watches the Lease and takes it over if it has not changed for its whole
term by the standby's own clock. A holder that cannot renew in time ends, well before another operator may begin. Whatever
the cause of a failed renewal, a defect included, the Lease counts as not renewed.
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
_RELEASES_MAX: Final = 3

_LOG: Final = logging.getLogger("queryable_operator.act.election")


class LeaseLost(Exception):
    """Report that another operator may act now, so this one must not."""


class Election:
    def __init__(self, cluster: Cluster, namespace: str, name: str, identity: str) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._lease: Manifest | None = None

    async def acquire(self) -> None:
        """Wait until this operator holds the Lease."""
        last_spec: object = None
        unchanged_since, last_holder = time.monotonic(), ""
        while True:
            try:
                lease = await self._cluster.get("Lease", self._namespace, self._name)
                spec = _spec(lease)
                if spec != last_spec:
                    last_spec, unchanged_since = spec, time.monotonic()
                holder = spec.get("holderIdentity") or ""
                term = spec.get("leaseDurationSeconds") or TERM_SECONDS
                if holder in ("", self._identity) or time.monotonic() - unchanged_since > term:
                    if await self._take(lease, spec):
                        _LOG.info(
                            "This operator acts now: it holds the Lease %s/%s", self._namespace, self._name
                        )
                        return
                elif holder != last_holder:
                    last_holder = holder
                    _LOG.info("Standing by: %s holds the Lease %s/%s", holder, self._namespace, self._name)
            except ClusterError as error:
                _LOG.warning("%s", error)
            except Exception:  # a Lease of any shape may be there: keep standing by
                _LOG.exception("The Lease %s/%s could not be taken", self._namespace, self._name)
            await asyncio.sleep(_RETRY_SECONDS * random.uniform(0.8, 1.2))  # noqa: S311

    async def keep(self) -> None:
        """Renew the Lease until that fails for too long. Never returns; raises LeaseLost."""
        renewed_at = time.monotonic()
        while True:
            await asyncio.sleep(_RETRY_SECONDS)
            started_at = time.monotonic()
            try:
                async with asyncio.timeout(max(0.0, renewed_at + _RENEW_WITHIN_SECONDS - started_at)):
                    await self._renew()
                renewed_at = started_at
            except LeaseLost:
                raise
            except Exception as error:
                reason = str(error) or (
                    "the API server is slow" if isinstance(error, TimeoutError) else repr(error)
                )
                _LOG.warning("The Lease could not be renewed: %s", reason)
                if time.monotonic() - renewed_at >= _RENEW_WITHIN_SECONDS:
                    raise LeaseLost(
                        f"the Lease {self._namespace}/{self._name} could not be renewed for {_RENEW_WITHIN_SECONDS:g} s"
                    ) from error

    async def release(self) -> None:
        """Give the Lease up, so that another operator need not wait for the end of its term.

        The end of this operator may have cancelled a write that the API server carries out, so what counts is what is there.
        """
        self._lease = None
        for _ in range(_RELEASES_MAX):
            try:
                lease = await self._cluster.get("Lease", self._namespace, self._name)
                if lease is None or _spec(lease).get("holderIdentity") != self._identity:
                    return
                spec = {**lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
                await self._cluster.replace(self._namespace, {**lease, "spec": spec})
                return
            except ClusterError as error:
                _LOG.info("%s", error)
                if not error.conflict:
                    return

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
                self._lease = await self._cluster.create(self._namespace, wanted)
            else:
                self._lease = await self._cluster.replace(self._namespace, wanted)
        except ClusterError as error:
            if not error.conflict:
                raise
        return self._lease is not None

    async def _renew(self) -> None:
        held = self._lease
        assert held is not None
        try:
            spec = {**held["spec"], "renewTime": _now()}
            self._lease = await self._cluster.replace(self._namespace, {**held, "spec": spec})
        except ClusterError as error:
            if not error.conflict and not error.absent:
                raise
            # Either our own last write, whose response was lost, or another holder.
            lease = await self._cluster.get("Lease", self._namespace, self._name)
            holder = _spec(lease).get("holderIdentity")
            if holder != self._identity or lease is None:
                raise LeaseLost(
                    f"the Lease {self._namespace}/{self._name} is held by {holder or 'no operator'}"
                ) from error
            self._lease = lease


def _spec(lease: Manifest | None) -> dict[str, Any]:
    """Return the spec of a Lease, which is optional in the API."""
    return dict((lease or {}).get("spec") or {})


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
