"""Test the election of one operator against a fake API server."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine
from typing import Any

import pytest

from queryable_operator.act import election as module
from queryable_operator.act.cluster import Cluster
from queryable_operator.act.election import Election, LeaseLost
from tests.support.fake_api import FakeApi, Refuse, Request
from tests.support.operating import until


@pytest.fixture(autouse=True)
def short_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the Lease's term to a second."""
    monkeypatch.setattr(module, "TERM_SECONDS", 1)
    monkeypatch.setattr(module, "_RENEW_WITHIN_SECONDS", 0.6)
    monkeypatch.setattr(module, "_RETRY_SECONDS", 0.05)


def _spec(api: FakeApi) -> dict[str, Any]:
    lease = api.get("Lease", "a", "l")
    assert lease is not None
    return dict(lease["spec"])


def _election(cluster: Cluster, identity: str) -> Election:
    return Election(cluster, "a", "l", identity)


def test_first_operator_takes_the_lease(api: FakeApi, cluster: Cluster) -> None:
    """An operator creates a missing Lease and holds it."""
    asyncio.run(_election(cluster, "one").acquire())
    assert _spec(api)["holderIdentity"] == "one"


def test_standby_waits_while_the_holder_renews(api: FakeApi, cluster: Cluster) -> None:
    """A standby does not act while the holder renews the Lease."""

    async def both() -> bool:
        first = _election(cluster, "one")
        await first.acquire()
        keeping = asyncio.create_task(first.keep())
        waiting = asyncio.create_task(_election(cluster, "two").acquire())
        renewed = _spec(api)["renewTime"]
        await until(lambda: _spec(api)["renewTime"] != renewed)
        acts = waiting.done()
        keeping.cancel()
        waiting.cancel()
        return acts

    assert asyncio.run(both()) is False


def test_unrenewed_lease_is_taken_after_its_term(api: FakeApi, cluster: Cluster) -> None:
    """A standby takes a Lease that has not changed for a term, whatever times it contains."""

    async def both() -> None:
        await _election(cluster, "one").acquire()
        lease = api.get("Lease", "a", "l")
        assert lease is not None
        api.put({**lease, "spec": {**lease["spec"], "renewTime": "2099-01-01T00:00:00.000000Z"}})
        await asyncio.wait_for(_election(cluster, "two").acquire(), 60)

    asyncio.run(both())
    assert _spec(api)["holderIdentity"] == "two"
    assert _spec(api)["leaseTransitions"] == 1


def test_released_lease_is_taken_at_once(api: FakeApi, cluster: Cluster) -> None:
    """A standby need not wait for the term of a released Lease."""

    async def both() -> None:
        first = _election(cluster, "one")
        await first.acquire()
        await first.release()
        assert _spec(api)["holderIdentity"] == ""
        await _election(cluster, "two").acquire()

    asyncio.run(both())
    assert _spec(api)["holderIdentity"] == "two"


def test_lease_is_released_after_a_write_that_was_cancelled(api: FakeApi, cluster: Cluster) -> None:
    """An operator that ends while it takes or renews the Lease gives it up, although it never gets the response."""

    async def end_during(election: Election, step: Coroutine[Any, Any, None], method: str) -> None:
        begun, going_on = threading.Event(), threading.Event()

        def hold(request: Request) -> None:
            if request.method == method:
                api.order = lambda _: None
                begun.set()
                assert going_on.wait(60)

        api.order = hold
        task = asyncio.create_task(step)
        await until(begun.is_set)
        before = api.get("Lease", "a", "l")
        task.cancel()
        going_on.set()
        await until(lambda: api.get("Lease", "a", "l") != before)
        await election.release()
        assert _spec(api)["holderIdentity"] == ""

    async def both() -> None:
        first = _election(cluster, "one")
        await end_during(first, first.acquire(), "POST")
        await first.acquire()
        await end_during(first, first.keep(), "PUT")

    asyncio.run(both())


def test_lease_of_another_operator_is_not_released(api: FakeApi, cluster: Cluster) -> None:
    """A standby that ends leaves the holder's Lease as it is."""

    async def both() -> None:
        await _election(cluster, "one").acquire()
        await _election(cluster, "two").release()

    asyncio.run(both())
    assert _spec(api)["holderIdentity"] == "one"


def test_holder_whose_lease_was_taken_ends(api: FakeApi, cluster: Cluster) -> None:
    """A holder whose Lease another operator took ends and names the new holder."""

    async def lose() -> None:
        first = _election(cluster, "one")
        await first.acquire()
        lease = api.get("Lease", "a", "l")
        assert lease is not None
        api.put({**lease, "spec": {**lease["spec"], "holderIdentity": "two"}})
        await asyncio.wait_for(first.keep(), 60)

    with pytest.raises(LeaseLost, match="the Lease a/l is held by two"):
        asyncio.run(lose())


def test_holder_that_cannot_renew_ends_before_its_term(api: FakeApi, cluster: Cluster) -> None:
    """A holder ends before another operator may take its Lease."""

    def refuse(request: Request) -> None:
        raise Refuse(500, "etcd is away")

    async def lose() -> None:
        first = _election(cluster, "one")
        await first.acquire()
        api.order = refuse
        await asyncio.wait_for(first.keep(), 60)

    with pytest.raises(LeaseLost, match="could not be renewed"):
        asyncio.run(lose())


def test_lost_response_does_not_lose_the_lease(api: FakeApi, cluster: Cluster) -> None:
    """If the response to a renewal is lost, the next renewal conflicts, and the holder continues."""

    async def keep() -> None:
        first = _election(cluster, "one")
        await first.acquire()
        lease = api.get("Lease", "a", "l")
        assert lease is not None
        api.put({**lease, "spec": {**lease["spec"], "renewTime": "2026-01-01T00:00:00.000000Z"}})
        keeping = asyncio.create_task(first.keep())
        await until(lambda: _spec(api)["renewTime"] > "2026-01-01T00:00:00.000000Z" or keeping.done())
        assert not keeping.done()
        keeping.cancel()

    asyncio.run(keep())


def test_one_of_two_simultaneous_operators_takes_the_lease(api: FakeApi, cluster: Cluster) -> None:
    """The API server accepts one of two simultaneous writes."""

    async def both() -> int:
        tasks = [asyncio.create_task(_election(cluster, name).acquire()) for name in ("one", "two")]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        done = sum(task.done() for task in tasks)
        for task in tasks:
            task.cancel()
        return done

    assert asyncio.run(both()) == 1


@pytest.mark.parametrize("spec", [{}, {"spec": None}, {"spec": {"leaseDurationSeconds": "soon"}}])
def test_malformed_lease_does_not_end_a_standby(api: FakeApi, cluster: Cluster, spec: dict[str, Any]) -> None:
    """A Lease needs no spec: the standby takes one without a holder, and waits at one that it cannot read."""
    meta = {"name": "l", "namespace": "a"}
    api.put({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, **spec})

    async def acquire() -> None:
        acquiring = asyncio.create_task(_election(cluster, "one").acquire())
        requests = len(api.requests)
        await until(lambda: acquiring.done() or len(api.requests) > requests + 2)
        if acquiring.done():
            acquiring.result()
        else:
            live = api.get("Lease", "a", "l")
            assert live is not None
            api.put({**live, "spec": {}})
            await asyncio.wait_for(acquiring, 60)

    asyncio.run(acquire())
    assert _spec(api)["holderIdentity"] == "one"


def test_unexpected_failure_of_a_renewal_loses_the_lease_in_time(
    api: FakeApi, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A defect in the renewal neither keeps the operator acting nor ends it before the limit."""

    async def broken(namespace: str, manifest: Any) -> Any:
        raise KeyError("metadata")

    async def lose() -> float:
        first = _election(cluster, "one")
        await first.acquire()
        monkeypatch.setattr(cluster, "replace", broken)
        began = time.monotonic()
        with pytest.raises(LeaseLost, match="could not be renewed"):
            await asyncio.wait_for(first.keep(), 60)
        return time.monotonic() - began

    assert asyncio.run(lose()) >= 0.5
