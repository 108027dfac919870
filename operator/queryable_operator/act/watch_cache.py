"""Cache the objects that the watches bring, reduced to the fields in use.

Every change goes through the cache, which keeps the last state of each object and wakes its resource's reconciler. A restarted
watch does not report deletions, so `resync` compares the cache with lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from queryable_operator.spec import names
from queryable_operator.spec.observed import Host, Manifest, Ref

_ZONE_LABEL: Final = "topology.kubernetes.io/zone"
_SERVICE_LABEL: Final = "kubernetes.io/service-name"

ResourceKey = tuple[str, str]
"""Namespace and name of a resource."""


class WatchCache:
    def __init__(self, hosts_are_watched: bool, changed: Callable[[ResourceKey], None]) -> None:
        self._changed = changed
        self._objects: dict[ResourceKey, dict[Ref, Manifest]] = {}
        self._keys: dict[tuple[str, Ref], ResourceKey] = {}
        self._hosts: dict[str, Host] | None = {} if hosts_are_watched else None
        self._host_versions: dict[str, str] = {}

    @property
    def hosts(self) -> Mapping[str, Host] | None:
        """Return a copy. None: the operator may not read Kubernetes nodes."""
        return None if self._hosts is None else dict(self._hosts)

    def objects_of(self, key: ResourceKey) -> dict[Ref, Manifest]:
        """Return a copy of a resource's objects by kind and name, EndpointSlices included."""
        return dict(self._objects.get(key, ()))

    def put(self, kind: str, live: Mapping[str, Any]) -> None:
        meta = live["metadata"]
        if kind == "Node":
            self._put_host(meta, live)
            return
        key = (meta["namespace"], meta.get("labels", {}).get(names.VIEW_LABEL, ""))
        ref = Ref(kind, meta["name"])
        before = self._keys.get((key[0], ref))
        if before is not None and before != key:  # its label was changed to another resource's
            self.remove(kind, *_place(live))
        self._keys[key[0], ref] = key
        self._objects.setdefault(key, {})[ref] = trimmed(kind, live)
        self._changed(key)

    def remove(self, kind: str, namespace: str, name: str) -> None:
        if kind == "Node":
            if self._hosts is not None:
                self._hosts.pop(name, None)
            self._host_versions.pop(name, None)
            return
        ref = Ref(kind, name)
        key = self._keys.pop((namespace, ref), None)
        if key is None:
            return
        objects = self._objects[key]
        objects.pop(ref, None)
        if not objects:
            del self._objects[key]
        self._changed(key)

    def known(self, kind: str) -> dict[tuple[str, str], str]:
        """Return the `resourceVersion` of each object of a kind, by namespace and name."""
        if kind == "Node":
            return {("", name): version for name, version in self._host_versions.items()}
        return {
            (key[0], ref.name): objects[ref]["metadata"].get("resourceVersion", "")
            for key, objects in self._objects.items()
            for ref in objects
            if ref.kind == kind
        }

    def _put_host(self, meta: Mapping[str, Any], live: Mapping[str, Any]) -> None:
        if self._hosts is None:
            return
        conditions = live.get("status", {}).get("conditions", ())
        ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
        host = Host(
            ready, not live.get("spec", {}).get("unschedulable"), meta.get("labels", {}).get(_ZONE_LABEL)
        )
        name = meta["name"]
        self._host_versions[name] = meta.get("resourceVersion", "")
        before = self._hosts.get(name)
        self._hosts[name] = host
        if before is not None and before != host:
            for key in self._on_host(name):
                self._changed(key)

    def _on_host(self, name: str) -> Iterator[ResourceKey]:
        for key, objects in list(self._objects.items()):
            if any(r.kind == "Pod" and o["spec"].get("nodeName") == name for r, o in objects.items()):
                yield key


def endpoints_of(service: str, objects: Mapping[Ref, Manifest]) -> frozenset[str]:
    """Return the pods to which a Service sends requests."""
    return frozenset(
        endpoint["targetRef"]["name"]
        for ref, live in objects.items()
        if ref.kind == "EndpointSlice" and live["metadata"].get("labels", {}).get(_SERVICE_LABEL) == service
        for endpoint in live.get("endpoints") or ()
        if endpoint.get("conditions", {}).get("ready") is not False
        and endpoint.get("targetRef", {}).get("kind") == "Pod"
    )


def trimmed(kind: str, live: Mapping[str, Any]) -> Manifest:
    """Return the object without unused fields: the cache holds thousands of them."""
    meta = {k: v for k, v in live["metadata"].items() if k != "managedFields"}
    kept = {**live, "kind": kind, "metadata": meta}
    if kind == "Pod":
        kept["spec"] = {"nodeName": live.get("spec", {}).get("nodeName")}
    if kind == "Secret":
        kept = {"apiVersion": live.get("apiVersion"), "kind": kind, "metadata": meta}
    return kept


def _place(live: Mapping[str, Any]) -> tuple[str, str]:
    return live["metadata"]["namespace"], live["metadata"]["name"]
