"""Check the operator's prerequisites: a reachable cluster, the CRD, and permissions.

Everything that is missing is reported at once and by name, not one item after another in a log of retries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from queryable_operator.act.cluster import KINDS, Cluster, ClusterError
from queryable_operator.spec import names

# By kind, or by kind and subresource.
_IN_NAMESPACES: Final = {
    names.KIND: ("get", "list", "watch", "patch"),
    f"{names.KIND}/status": ("patch",),
    "ConfigMap": ("get", "list", "watch", "create", "patch", "delete"),
    "EndpointSlice": ("list", "watch"),
    "Event": ("create",),
    "NetworkPolicy": ("get", "list", "watch", "create", "patch", "delete"),
    "PersistentVolumeClaim": ("get", "list", "watch", "patch", "delete"),
    "Pod": ("list", "watch", "delete"),
    "Pod/eviction": ("create",),
    "PodDisruptionBudget": ("get", "list", "watch", "create", "patch", "delete"),
    "Secret": ("get", "create", "patch", "delete"),
    "Service": ("get", "list", "watch", "create", "patch", "delete"),
    "ServiceAccount": ("get", "list", "watch", "create", "patch", "delete"),
    "StatefulSet": ("get", "list", "watch", "create", "patch", "delete"),
}
_HOSTS: Final = {"Node": ("list", "watch")}

_AT_ONCE: Final = 8


@dataclass(frozen=True, slots=True)
class Permission:
    verb: str
    kind: str  # or kind/subresource
    namespace: str | None  # None: all of them
    name: str = ""
    """The name of the one object. Empty: all objects."""


class PreflightFailed(Exception):
    """Report what is missing, one item a line."""


def permissions(namespaces: Sequence[str], lease: tuple[str, str] | None) -> Iterator[Permission]:
    """Yield every permission that the operator uses. `lease` is a namespace and a name."""
    for namespace in namespaces or (None,):
        for kind, verbs in _IN_NAMESPACES.items():
            yield from (Permission(verb, kind, namespace) for verb in verbs)
    if not namespaces:
        for kind, verbs in _HOSTS.items():
            yield from (Permission(verb, kind, None) for verb in verbs)
    if lease is not None:
        yield Permission("create", "Lease", lease[0])  # permission to create cannot be restricted by name
        yield from (Permission(verb, "Lease", *lease) for verb in ("get", "update"))


async def check(cluster: Cluster, namespaces: Sequence[str], lease: tuple[str, str] | None) -> None:
    """Return if nothing is missing. No `namespaces`: all of them."""
    try:
        if not await cluster.serves(names.KIND):
            raise PreflightFailed(
                f"The cluster has no {names.PLURAL}.{names.GROUP}: apply crds/queryabletopic.yaml first"
            )
        denied = await _denied(cluster, list(permissions(namespaces, lease)))
    except ClusterError as error:
        raise PreflightFailed(f"The cluster is unreachable or rejects the credentials: {error}") from error
    if denied:
        raise PreflightFailed("\n".join(["The operator's service account lacks these permissions:", *denied]))


async def _denied(cluster: Cluster, wanted: Sequence[Permission]) -> list[str]:
    turn = asyncio.Semaphore(_AT_ONCE)

    async def is_allowed(permission: Permission) -> bool:
        kind, _, subresource = permission.kind.partition("/")
        resource = KINDS[kind].plural + (f"/{subresource}" if subresource else "")
        async with turn:
            return await cluster.may(
                permission.verb, KINDS[kind].group, resource, permission.namespace, permission.name
            )

    allowed = await asyncio.gather(*(is_allowed(permission) for permission in wanted))
    missing: dict[tuple[str, str | None], list[str]] = {}
    for permission, may in zip(wanted, allowed, strict=True):
        if not may:
            missing.setdefault(
                (f"{permission.kind} {permission.name}".rstrip(), permission.namespace), []
            ).append(permission.verb)
    return [
        f"  {', '.join(verbs)} {what} in {'the namespace ' + namespace if namespace else 'all namespaces'}"
        for (what, namespace), verbs in missing.items()
    ]
