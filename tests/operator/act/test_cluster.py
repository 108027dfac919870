"""Cluster against an API server that answers as it is told."""

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


def test_what_is_not_there_is_none(cluster: Cluster) -> None:
    """Getting an object that does not exist is no error."""
    assert asyncio.run(cluster.get("ConfigMap", "a", "nothing")) is None


def test_an_apply_makes_and_changes(api: FakeApi, cluster: Cluster) -> None:
    """The same call creates an object and changes it, as our field manager and by force."""

    async def twice() -> None:
        await cluster.apply("a", _map("m", one="1"))
        await cluster.apply("a", _map("m", two="2"))

    asyncio.run(twice())
    live = api.get("ConfigMap", "a", "m")
    assert live is not None
    assert live["data"] == {"one": "1", "two": "2"}
    assert api.writes()[0].query == {"fieldManager": names.FIELD_MANAGER, "force": "true"}


def test_an_apply_over_what_has_changed_is_a_conflict(api: FakeApi, cluster: Cluster) -> None:
    """An object that is no longer as it was observed is not written over."""
    version = api.put(_map("m", one="1"))["metadata"]["resourceVersion"]
    api.put(_map("m", one="somebody else's"))
    with pytest.raises(
        ClusterError, match="cannot apply ConfigMap m in a: the object has been modified"
    ) as error:
        asyncio.run(cluster.apply("a", _map("m", one="2"), version))
    assert error.value.conflict


@pytest.mark.parametrize("status", [403, 410, 422, 429, 500, 503])
def test_every_failure_names_verb_kind_and_name(api: FakeApi, cluster: Cluster, status: int) -> None:
    """Whatever the API server answers, the error says what was not done, to what, and why."""
    _refuse(api, status, "no, sorry", Retry_After="7")
    with pytest.raises(ClusterError, match=r"^cannot apply ConfigMap m in a: no, sorry$") as error:
        asyncio.run(cluster.apply("a", _map("m")))
    assert (error.value.status, error.value.retry_after_seconds) == (status, 7.0)


def test_an_api_server_that_is_away_is_named(cluster: Cluster, api: FakeApi) -> None:
    """With nobody at its address, the error names the address."""
    elsewhere = api.configuration()
    elsewhere.host = "http://127.0.0.1:1"
    away = Cluster(elsewhere)
    with pytest.raises(
        ClusterError, match=r"cannot get Lease l in a: the API server at http://127\.0\.0\.1:1"
    ) as error:
        asyncio.run(away.get("Lease", "a", "l"))
    assert error.value.status == 0
    away.close()


def test_only_the_very_object_is_deleted(api: FakeApi, cluster: Cluster) -> None:
    """An object that has come anew under the same name is left alone, and that is no error."""
    api.put(_map("m"))
    asyncio.run(cluster.delete("a", Ref("ConfigMap", "m"), "another one"))
    assert api.get("ConfigMap", "a", "m") is not None


def test_deleting_what_is_gone_is_no_error(cluster: Cluster) -> None:
    """Somebody else was faster."""
    asyncio.run(cluster.delete("a", Ref("ConfigMap", "m"), "it"))


def test_a_forced_delete_waits_for_no_host(api: FakeApi, cluster: Cluster) -> None:
    """A pod whose host is gone goes without its host's word."""
    uid = api.put({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "a"}})[
        "metadata"
    ]["uid"]
    asyncio.run(cluster.delete("a", Ref("Pod", "p"), uid, force=True))
    assert api.writes()[0].body["gracePeriodSeconds"] == 0


def test_a_budget_that_forbids_an_eviction_is_told(api: FakeApi, cluster: Cluster) -> None:
    """The API server's 429 is a reason and no failure."""
    _refuse(api, 429, "would violate the pod's disruption budget")
    reason = asyncio.run(cluster.evict("a", "p", "it"))
    assert reason is not None
    assert "disruption budget" in reason


def test_an_eviction_means_one_pod(api: FakeApi, cluster: Cluster) -> None:
    """The uid is a precondition, and a pod that has gone is as good as evicted."""
    assert asyncio.run(cluster.evict("a", "p", "it")) is None
    assert api.writes()[0].body["deleteOptions"] == {"preconditions": {"uid": "it"}}


def test_a_name_that_is_taken_is_not_created(api: FakeApi, cluster: Cluster) -> None:
    """Creating says None when there is one already."""
    api.put(_map("m"))
    assert asyncio.run(cluster.create("a", _map("m"))) is None


def test_a_status_is_written_whole(api: FakeApi, cluster: Cluster) -> None:
    """What is no longer in the status goes."""
    live = api.put({**_topic(), "status": {"phase": "Pending", "url": "old"}})
    asyncio.run(cluster.replace_status(live, {"phase": "Ready"}))
    after = api.get(names.KIND, "a", "v")
    assert after is not None
    assert after["status"] == {"phase": "Ready"}


def test_a_status_is_of_the_resource_that_was_looked_at(api: FakeApi, cluster: Cluster) -> None:
    """A resource that has changed since gets no status made of what it was."""
    before = api.put(_topic())
    api.put({**_topic(), "spec": {"topic": "another"}})
    with pytest.raises(ClusterError, match="cannot write the status of QueryableTopic v in a") as error:
        asyncio.run(cluster.replace_status(before, {"phase": "Ready"}))
    assert error.value.conflict


def test_versions_are_of_all_our_objects(api: FakeApi, cluster: Cluster) -> None:
    """A list of one kind, by namespace and name, of those that carry our label."""
    api.put({**_map("m"), "metadata": {"name": "m", "namespace": "a", "labels": {names.VIEW_LABEL: "v"}}})
    api.put(_map("another's"))
    assert set(asyncio.run(cluster.versions("ConfigMap", None))) == {("a", "m")}


def test_a_permission_is_asked_for(api: FakeApi, cluster: Cluster) -> None:
    """The API server itself says what we may."""
    api.denied.add(("delete", "pods"))

    async def ask() -> tuple[bool, bool]:
        return await cluster.may("delete", "", "pods", "a"), await cluster.may("list", "", "pods", "a")

    assert asyncio.run(ask()) == (False, True)


def test_a_kind_that_is_not_installed_is_noticed(api: FakeApi, cluster: Cluster) -> None:
    """Without the definition the API server does not know the group."""
    assert asyncio.run(cluster.serves(names.KIND))
    api.crd = False
    assert not asyncio.run(cluster.serves(names.KIND))
