"""What the watches have brought, and whom it wakes."""

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


def test_an_object_is_of_the_view_in_its_label() -> None:
    """And its view is woken."""
    watch_cache = _Seen()
    watch_cache.put("ConfigMap", _live())
    assert list(watch_cache.objects_of(("a", "v"))) == [Ref("ConfigMap", "v-r1")]
    assert watch_cache.woken == [("a", "v")]


def test_what_nobody_reads_is_not_kept() -> None:
    """Of field managers nothing, of a pod's spec its host alone."""
    watch_cache = _Seen()
    watch_cache.put("Pod", _live("Pod", spec={"nodeName": "h", "containers": [{"name": "serve"}]}))
    (kept,) = watch_cache.objects_of(("a", "v")).values()
    assert "managedFields" not in kept["metadata"]
    assert kept["spec"] == {"nodeName": "h"}


def test_an_object_that_is_gone_is_gone() -> None:
    """And its view is woken again; that of an object which was never there is not."""
    watch_cache = _Seen()
    watch_cache.put("ConfigMap", _live())
    watch_cache.remove("ConfigMap", "a", "v-r1")
    watch_cache.remove("ConfigMap", "a", "another")
    assert watch_cache.objects_of(("a", "v")) == {}
    assert len(watch_cache.woken) == 2


def test_an_object_can_change_its_view() -> None:
    """Somebody edits the label: it leaves the one, and is with the other."""
    watch_cache = _Seen()
    watch_cache.put("ConfigMap", _live())
    watch_cache.put("ConfigMap", _live(view="w"))
    assert watch_cache.objects_of(("a", "v")) == {}
    assert list(watch_cache.objects_of(("a", "w"))) == [Ref("ConfigMap", "v-r1")]
    assert watch_cache.woken == [("a", "v"), ("a", "v"), ("a", "w")]


def test_versions_are_known_by_place() -> None:
    """Of one kind, to hold against a list."""
    watch_cache = _Seen()
    watch_cache.put("ConfigMap", _live(version="7"))
    watch_cache.put("Pod", _live("Pod", spec={}))
    watch_cache.put("Node", _host())
    assert watch_cache.known("ConfigMap") == {("a", "v-r1"): "7"}
    assert watch_cache.known("Node") == {("", "h"): "True"}


def test_hosts_are_cut_down_to_what_is_decided_by() -> None:
    """Whether one is ready, takes pods, and where it is."""
    watch_cache = _Seen()
    watch_cache.put("Node", _host(unschedulable=True))
    assert watch_cache.hosts == {"h": Host(ready=True, schedulable=False, zone="z1")}


def test_a_host_that_changes_wakes_those_who_are_there() -> None:
    """A heartbeat of a host that is as it was wakes nobody."""
    watch_cache = _Seen()
    watch_cache.put("Pod", _live("Pod", spec={"nodeName": "h"}))
    watch_cache.put("Pod", _live("Pod", name="w-r1-0", view="w", spec={"nodeName": "another"}))
    watch_cache.put("Node", _host())
    watch_cache.woken.clear()
    watch_cache.put("Node", _host())
    assert watch_cache.woken == []
    watch_cache.put("Node", _host(ready="Unknown"))
    assert watch_cache.woken == [("a", "v")]


def test_hosts_that_may_not_be_looked_at_are_none() -> None:
    """That is another thing than there being none."""
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
def test_endpoints_are_those_that_get_requests(conditions: dict[str, bool], gets_requests: bool) -> None:
    """What is not said counts as ready, as kube-proxy has it; a pod that is ending gets no new requests."""
    endpoint = {"conditions": conditions, "targetRef": {"kind": "Pod", "name": "v-r1-0"}}
    slices = {}
    for service in ("v", "v-r1"):
        live = _live("EndpointSlice", name=f"{service}-x", endpoints=[endpoint])
        live["metadata"]["labels"]["kubernetes.io/service-name"] = service
        slices[Ref("EndpointSlice", f"{service}-x")] = live
    assert endpoints_of("v", slices) == (frozenset({"v-r1-0"}) if gets_requests else frozenset())


def test_a_slice_without_endpoints_has_none() -> None:
    """The API server says null."""
    live = _live("EndpointSlice", name="v-x", endpoints=None)
    live["metadata"]["labels"]["kubernetes.io/service-name"] = "v"
    assert endpoints_of("v", {Ref("EndpointSlice", "v-x"): live}) == frozenset()
