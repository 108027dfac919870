"""Test the Kubernetes client against a fake API server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from queryable_operator.act.cluster import Cluster, ClusterError
from queryable_operator.spec import names
from queryable_operator.spec.observed import Ref
from tests.support.fake_api import FakeApi, Refuse, Request


def _map(name: str, **data: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "a"},
        "data": data,
    }


def _topic(**more: Any) -> dict[str, Any]:
    meta = {"name": "v", "namespace": "a", **more}
    return {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": meta, "spec": {}}


def _refuse(api: FakeApi, status: int, message: str, **headers: str) -> None:
    def order(request: Request) -> None:
        raise Refuse(status, message, **headers)

    api.order = order


def test_missing_object_is_none(cluster: Cluster) -> None:
    """Reading an object that does not exist is no error."""
    assert asyncio.run(cluster.get("ConfigMap", "a", "nothing")) is None


def test_apply_creates_and_updates(api: FakeApi, cluster: Cluster) -> None:
    """One call creates an object and updates it, with the operator's field manager and by force."""

    async def twice() -> None:
        await cluster.apply("a", _map("m", one="1"))
        await cluster.apply("a", _map("m", two="2"))

    asyncio.run(twice())
    live = api.get("ConfigMap", "a", "m")
    assert live is not None
    assert live["data"] == {"one": "1", "two": "2"}
    assert api.writes()[0].query == {"fieldManager": names.FIELD_MANAGER, "force": "true"}


def test_apply_over_a_changed_object_is_a_conflict(api: FakeApi, cluster: Cluster) -> None:
    """An object that changed since its observation is not overwritten."""
    version = api.put(_map("m", one="1"))["metadata"]["resourceVersion"]
    api.put(_map("m", one="another writer's"))
    with pytest.raises(
        ClusterError, match="cannot apply ConfigMap m in a: the object has been modified"
    ) as error:
        asyncio.run(cluster.apply("a", _map("m", one="2"), version))
    assert error.value.conflict


@pytest.mark.parametrize("status", [403, 410, 422, 429, 500, 503])
def test_every_failure_names_verb_kind_and_name(api: FakeApi, cluster: Cluster, status: int) -> None:
    """Every error names the verb, the object and the API server's reason."""
    _refuse(api, status, "no, sorry", Retry_After="7")
    with pytest.raises(ClusterError, match=r"^cannot apply ConfigMap m in a: no, sorry$") as error:
        asyncio.run(cluster.apply("a", _map("m")))
    assert (error.value.status, error.value.retry_after_seconds) == (status, 7.0)


def test_unreachable_api_server_is_named(cluster: Cluster, api: FakeApi) -> None:
    """If nothing listens at the API server's address, the error contains the address."""
    elsewhere = api.configuration()
    elsewhere.host = "http://127.0.0.1:1"
    away = Cluster(elsewhere)
    with pytest.raises(
        ClusterError, match=r"cannot get Lease l in a: the API server at http://127\.0\.0\.1:1"
    ) as error:
        asyncio.run(away.get("Lease", "a", "l"))
    assert error.value.status == 0
    away.close()


def test_only_the_observed_object_is_deleted(api: FakeApi, cluster: Cluster) -> None:
    """A newer object with the same name is not deleted, and that is no error."""
    api.put(_map("m"))
    asyncio.run(cluster.delete("a", Ref("ConfigMap", "m"), "another one"))
    assert api.get("ConfigMap", "a", "m") is not None


def test_deleting_a_missing_object_is_no_error(cluster: Cluster) -> None:
    """Deleting an object that is already deleted succeeds."""
    asyncio.run(cluster.delete("a", Ref("ConfigMap", "m"), "it"))


def test_forced_delete_does_not_wait_for_the_kubelet(api: FakeApi, cluster: Cluster) -> None:
    """A pod on a lost host is deleted without a grace period."""
    uid = api.put({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "a"}})[
        "metadata"
    ]["uid"]
    asyncio.run(cluster.delete("a", Ref("Pod", "p"), uid, force=True))
    assert api.writes()[0].body["gracePeriodSeconds"] == 0


def test_forbidden_eviction_returns_the_reason(api: FakeApi, cluster: Cluster) -> None:
    """The API server's 429 for an eviction is a reason, not an error."""
    _refuse(api, 429, "would violate the pod's disruption budget")
    reason = asyncio.run(cluster.evict("a", "p", "it"))
    assert reason is not None
    assert "disruption budget" in reason


def test_eviction_has_the_uid_as_precondition(api: FakeApi, cluster: Cluster) -> None:
    """An eviction names the pod's uid; a pod that is gone counts as evicted."""
    assert asyncio.run(cluster.evict("a", "p", "it")) is None
    assert api.writes()[0].body["deleteOptions"] == {"preconditions": {"uid": "it"}}


def test_create_returns_none_for_a_taken_name(api: FakeApi, cluster: Cluster) -> None:
    """Creating an object under a taken name returns None."""
    api.put(_map("m"))
    assert asyncio.run(cluster.create("a", _map("m"))) is None


def test_status_is_replaced_as_a_whole(api: FakeApi, cluster: Cluster) -> None:
    """A field that the new status lacks is removed."""
    live = api.put({**_topic(), "status": {"phase": "Pending", "url": "old"}})
    asyncio.run(cluster.replace_status(live, {"phase": "Ready"}))
    after = api.get(names.KIND, "a", "v")
    assert after is not None
    assert after["status"] == {"phase": "Ready"}


def test_status_is_not_written_to_a_changed_resource(api: FakeApi, cluster: Cluster) -> None:
    """A resource that changed since its observation does not get the status of the old one."""
    before = api.put(_topic())
    api.put({**_topic(), "spec": {"topic": "another"}})
    with pytest.raises(ClusterError, match="cannot write the status of QueryableTopic v in a") as error:
        asyncio.run(cluster.replace_status(before, {"phase": "Ready"}))
    assert error.value.conflict


def test_versions_lists_labelled_objects(api: FakeApi, cluster: Cluster) -> None:
    """Versions are listed by namespace and name, for objects of one kind with the operator's label."""
    api.put({**_map("m"), "metadata": {"name": "m", "namespace": "a", "labels": {names.VIEW_LABEL: "v"}}})
    api.put(_map("another's"))
    assert set(asyncio.run(cluster.versions("ConfigMap", None))) == {("a", "m")}


def test_permission_is_reviewed_by_the_api_server(api: FakeApi, cluster: Cluster) -> None:
    """The API server decides whether the operator has a permission."""
    api.denied.add(("delete", "pods"))

    async def ask() -> tuple[bool, bool]:
        return await cluster.may("delete", "", "pods", "a"), await cluster.may("list", "", "pods", "a")

    assert asyncio.run(ask()) == (False, True)


def test_missing_crd_is_detected(api: FakeApi, cluster: Cluster) -> None:
    """Without the CRD the API server does not serve the group."""
    assert asyncio.run(cluster.serves(names.KIND))
    api.crd = False
    assert not asyncio.run(cluster.serves(names.KIND))
