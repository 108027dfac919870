"""Of several operators one acts: against an API server that answers as it is told."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from queryable_operator.act import election as module
from queryable_operator.act.cluster import Cluster
from queryable_operator.act.election import Election, LeaseLost
from tests.support.fake_api import FakeApi, Refuse, Request
from tests.support.operating import until


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Terms of a second, or the tests would take a minute."""
    monkeypatch.setattr(module, "TERM_SECONDS", 1)
    monkeypatch.setattr(module, "_RENEW_WITHIN_SECONDS", 0.6)
    monkeypatch.setattr(module, "_RETRY_SECONDS", 0.05)


def _spec(api: FakeApi) -> dict[str, Any]:
    lease = api.get("Lease", "a", "l")
    assert lease is not None
    return dict(lease["spec"])


def _election(cluster: Cluster, identity: str) -> Election:
    return Election(cluster, "a", "l", identity)


def test_the_first_one_acts(api: FakeApi, cluster: Cluster) -> None:
    """It makes the Lease that is not there, in its own name."""
    asyncio.run(_election(cluster, "one").acquire())
    assert _spec(api)["holderIdentity"] == "one"


def test_another_one_waits_while_the_first_renews(api: FakeApi, cluster: Cluster) -> None:
    """Only one of them acts at a time."""

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


def test_a_silent_one_is_taken_over_after_its_term(api: FakeApi, cluster: Cluster) -> None:
    """Whatever the clock of the first one says: the record has not changed for a term."""

    async def both() -> None:
        await _election(cluster, "one").acquire()
        lease = api.get("Lease", "a", "l")
        assert lease is not None
        api.put({**lease, "spec": {**lease["spec"], "renewTime": "2099-01-01T00:00:00.000000Z"}})
        await asyncio.wait_for(_election(cluster, "two").acquire(), 60)

    asyncio.run(both())
    assert _spec(api)["holderIdentity"] == "two"
    assert _spec(api)["leaseTransitions"] == 1


def test_one_that_ends_makes_room_at_once(api: FakeApi, cluster: Cluster) -> None:
    """The next one need not wait for the end of a term."""

    async def both() -> None:
        first = _election(cluster, "one")
        await first.acquire()
        await first.release()
        assert _spec(api)["holderIdentity"] == ""
        await _election(cluster, "two").acquire()

    asyncio.run(both())
    assert _spec(api)["holderIdentity"] == "two"


def test_one_that_was_taken_over_ends(api: FakeApi, cluster: Cluster) -> None:
    """It says who holds the Lease now."""

    async def lose() -> None:
        first = _election(cluster, "one")
        await first.acquire()
        lease = api.get("Lease", "a", "l")
        assert lease is not None
        api.put({**lease, "spec": {**lease["spec"], "holderIdentity": "two"}})
        await asyncio.wait_for(first.keep(), 60)

    with pytest.raises(LeaseLost, match="the Lease a/l is held by two"):
        asyncio.run(lose())


def test_one_that_cannot_renew_ends_before_its_term(api: FakeApi, cluster: Cluster) -> None:
    """While the API server refuses, another one could not know that this one still acts."""

    def refuse(request: Request) -> None:
        raise Refuse(500, "etcd is away")

    async def lose() -> None:
        first = _election(cluster, "one")
        await first.acquire()
        api.order = refuse
        await asyncio.wait_for(first.keep(), 60)

    with pytest.raises(LeaseLost, match="could not be renewed"):
        asyncio.run(lose())


def test_an_answer_that_was_lost_is_no_loss(api: FakeApi, cluster: Cluster) -> None:
    """A renewal of its own that it never heard of makes the next one a conflict, and it goes on."""

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


def test_of_two_that_come_at_once_one_acts(api: FakeApi, cluster: Cluster) -> None:
    """The API server lets one of them write."""

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
