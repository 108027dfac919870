"""Test what the watch cache holds, and which reconcilers it wakes."""

from __future__ import annotations

from typing import Any

import pytest

from queryable_operator.act.watch_cache import ResourceKey, WatchCache, endpoints_of
from queryable_operator.spec import names
from queryable_operator.spec.observed import Host, Ref


class _Seen(WatchCache):
    def __init__(self, hosts: bool = True) -> None:
        self.woken: list[ResourceKey] = []
        super().__init__(hosts, self.woken.append)


def _live(
    kind: str = "ConfigMap", name: str = "v-r1", view: str = "v", version: str = "1", **more: Any
) -> dict[str, Any]:
    meta = {"name": name, "namespace": "a", "labels": {names.VIEW_LABEL: view}, "resourceVersion": version}
    return {"kind": kind, "metadata": {**meta, "managedFields": [{}]}, **more}


def _host(name: str = "h", *, ready: str = "True", **spec: Any) -> dict[str, Any]:
    meta = {"name": name, "labels": {"topology.kubernetes.io/zone": "z1"}, "resourceVersion": ready}
    return {"metadata": meta, "spec": spec, "status": {"conditions": [{"type": "Ready", "status": ready}]}}


def test_object_belongs_to_the_view_in_its_label() -> None:
    """A new object wakes its view's reconciler."""
    watch_cache = _Seen()
    watch_cache.put("ConfigMap", _live())
    assert list(watch_cache.objects_of(("a", "v"))) == [Ref("ConfigMap", "v-r1")]
    assert watch_cache.woken == [("a", "v")]


def test_unused_fields_are_dropped() -> None:
    """No managed fields are kept, and of a pod's spec only its host."""
    watch_cache = _Seen()
    watch_cache.put("Pod", _live("Pod", spec={"nodeName": "h", "containers": [{"name": "serve"}]}))
    (pod,) = watch_cache.objects_of(("a", "v")).values()
    assert "managedFields" not in pod["metadata"]
    assert pod["spec"] == {"nodeName": "h"}


def test_removed_object_wakes_its_view() -> None:
    """An object that was never there wakes none."""
    watch_cache = _Seen()
    watch_cache.put("ConfigMap", _live())
    watch_cache.remove("ConfigMap", "a", "v-r1")
    watch_cache.remove("ConfigMap", "a", "another")
    assert watch_cache.objects_of(("a", "v")) == {}
    assert len(watch_cache.woken) == 2


def test_edited_label_moves_an_object() -> None:
    """The object leaves one view and joins the other."""
    watch_cache = _Seen()
    watch_cache.put("ConfigMap", _live())
    watch_cache.put("ConfigMap", _live(view="w"))
    assert watch_cache.objects_of(("a", "v")) == {}
    assert list(watch_cache.objects_of(("a", "w"))) == [Ref("ConfigMap", "v-r1")]
    assert watch_cache.woken == [("a", "v"), ("a", "v"), ("a", "w")]


def test_versions_are_listed_by_kind() -> None:
    """The cache lists the versions of its objects by kind, for the comparison with a list from the API server."""
    watch_cache = _Seen()
    watch_cache.put("ConfigMap", _live(version="7"))
    watch_cache.put("Pod", _live("Pod", spec={}))
    watch_cache.put("Node", _host())
    assert watch_cache.known("ConfigMap") == {("a", "v-r1"): "7"}
    assert watch_cache.known("Node") == {("", "h"): "True"}


def test_hosts_are_reduced_to_used_fields() -> None:
    """Readiness, schedulability and zone remain."""
    watch_cache = _Seen()
    watch_cache.put("Node", _host(unschedulable=True))
    assert watch_cache.hosts == {"h": Host(ready=True, schedulable=False, zone="z1")}


def test_changed_host_wakes_its_views() -> None:
    """A heartbeat without a change wakes none."""
    watch_cache = _Seen()
    watch_cache.put("Pod", _live("Pod", spec={"nodeName": "h"}))
    watch_cache.put("Pod", _live("Pod", name="w-r1-0", view="w", spec={"nodeName": "another"}))
    watch_cache.put("Node", _host())
    watch_cache.woken.clear()
    watch_cache.put("Node", _host())
    assert watch_cache.woken == []
    watch_cache.put("Node", _host(ready="Unknown"))
    assert watch_cache.woken == [("a", "v")]


def test_hosts_are_none_without_permission() -> None:
    """Without permission to list Kubernetes nodes the hosts are None, unlike those of a cluster without hosts."""
    watch_cache = _Seen(hosts=False)
    watch_cache.put("Node", _host())
    watch_cache.remove("Node", "", "h")
    assert watch_cache.hosts is None
    assert _Seen().hosts == {}


@pytest.mark.parametrize(
    ("conditions", "gets_requests"),
    [
        ({"ready": True}, True),
        ({}, True),
        ({"ready": False}, False),
        ({"ready": False, "serving": True}, False),
    ],
)
def test_endpoints_receive_requests(conditions: dict[str, bool], gets_requests: bool) -> None:
    """An unset condition counts as ready, as in kube-proxy; a terminating pod receives no new requests."""
    endpoint = {"conditions": conditions, "targetRef": {"kind": "Pod", "name": "v-r1-0"}}
    slices = {}
    for service in ("v", "v-r1"):
        live = _live("EndpointSlice", name=f"{service}-x", endpoints=[endpoint])
        live["metadata"]["labels"]["kubernetes.io/service-name"] = service
        slices[Ref("EndpointSlice", f"{service}-x")] = live
    assert endpoints_of("v", slices) == (frozenset({"v-r1-0"}) if gets_requests else frozenset())


def test_slice_without_endpoints_is_empty() -> None:
    """The API server encodes it as null."""
    live = _live("EndpointSlice", name="v-x", endpoints=None)
    live["metadata"]["labels"]["kubernetes.io/service-name"] = "v"
    assert endpoints_of("v", {Ref("EndpointSlice", "v-x"): live}) == frozenset()
