"""Test `GET /v1/filter`: the keys that it has, over several nodes, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import httpx
import pytest

from queryable_app.client import AsyncQueryableTopic, QueryableTopic
from queryable_app.wire.key_filter import RATE_MIN, decode_filter
from queryable_app.wire.partitioners import partition_for
from tests.support.node_cluster import NodeCluster, three_nodes
from tests.support.served import served
from tests.support.windows import view

KEYS = [b"key-%04d" % n for n in range(5000)]
GONE = [b"gone-%02d" % n for n in range(50)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeCluster]:
    with three_nodes(tmp_path_factory.mktemp("filter"), 1) as started:
        for key in KEYS:
            started.put(key, b"1")
        for n, key in enumerate(GONE):
            started.put(key, b"1", expiry_ms=n % 2)
            if not n % 2:
                started.put(key, None)
        yield started


@pytest.fixture(scope="module")
def http(cluster: NodeCluster) -> Iterator[httpx.Client]:
    with cluster.nodes[0].client() as client:
        yield client


def test_filter_has_the_keys_of_all_nodes(cluster: NodeCluster, http: httpx.Client) -> None:
    """The filter has every key of every partition, no deleted or expired one, and says at which positions."""
    answer = http.get("/v1/filter", params={"rate": RATE_MIN})
    found = decode_filter(answer.content)
    assert answer.headers["content-type"] == "application/octet-stream"
    assert found.keys == len(KEYS)
    assert all(map(found.may_contain, KEYS))
    assert not any(map(found.may_contain, GONE))
    assert answer.headers["qt-position"] == ",".join(f"{p}:{o}" for p, o in sorted(found.positions.items()))
    assert len(found.positions) == 6


def test_filter_of_one_partition_has_its_keys(http: httpx.Client) -> None:
    """With `partition` the filter has the keys of that partition."""
    found = decode_filter(http.get("/v1/filter", params={"rate": RATE_MIN, "partition": 4}).content)
    of_partition = [key for key in KEYS if partition_for(key, "murmur2", 6) == 4]
    assert (found.keys, list(found.positions)) == (len(of_partition), [4])
    assert [key for key in KEYS if found.may_contain(key)] == of_partition


@pytest.mark.parametrize(
    ("query", "detail"),
    [
        ("rate=0", "rate: '0' is not allowed"),
        ("rate=0.6", "rate: '0.6' is not allowed"),
        ("rate=nan", "rate: 'nan' is not allowed"),
        ("rate=x", "rate: 'x' is not allowed"),
        ("partition=6", "partition: '6' is not allowed"),
        ("partial=allow", "'partial': is no parameter of this request"),
    ],
)
def test_mistakes_are_named(http: httpx.Client, query: str, detail: str) -> None:
    """A mistake is 400 and names the parameter."""
    answer = http.get(f"/v1/filter?{query}")
    assert (answer.status_code, answer.json()["detail"]) == (400, detail)


def test_filter_lacks_no_partition(tmp_path_factory: pytest.TempPathFactory) -> None:
    """While a replica is still being built, there is no filter: it would lack keys that exist."""
    with (
        served(tmp_path_factory.mktemp("building"), partitions=2, complete=False) as node,
        node.client() as http,
    ):
        answer = http.get("/v1/filter", params={"consistency": "any"})
    assert (answer.status_code, answer.json()["missing"]) == (503, [0, 1])


def test_view_with_windows_has_no_filter(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A view with windows has no single value of a key, and says what it has."""
    with served(tmp_path_factory.mktemp("windows"), view=view(size="1m")) as node, node.client() as http:
        assert http.get("/v1/filter").json()["reason"] == "no_such_resource"


def test_client_knows_absent_keys_without_a_request(cluster: NodeCluster) -> None:
    """A filter in the client has every key, and says of nearly all others that they are absent."""
    with QueryableTopic(cluster.addresses) as users:
        members = users.membership()
        assert len(members) == len(KEYS)
        assert all(key.decode() in members for key in KEYS)
        assert sum(f"other-{n}" in members for n in range(2000)) < 60
        assert members.positions.keys() == set(range(6))


async def _read(cluster: NodeCluster) -> bool:
    async with AsyncQueryableTopic(cluster.addresses) as users:
        members = await users.membership(rate=0.001)
        return "key-0001" in members and "absent" not in members


def test_asyncio_client_has_the_same(cluster: NodeCluster) -> None:
    """The client for asyncio reads a filter too."""
    assert asyncio.run(_read(cluster))
