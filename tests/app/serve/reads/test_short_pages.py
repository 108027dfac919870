"""A page over several nodes collects about as many rows as it has, and not a whole batch of every node."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from queryable_app.serve.base.peer_frames import RawRow
from queryable_app.serve.reads import peer_reads
from queryable_app.wire.partitioners import partition_for
from tests.support.node_cluster import NodeCluster, three_nodes

KEYS = [f"key-{n:04d}" for n in range(600)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeCluster]:
    """Three nodes with one replica of each partition. After the keys there are 100 that only node 1 has."""
    with three_nodes(tmp_path_factory.mktemp("cluster"), 1) as started:
        for key in KEYS:
            started.put(key.encode(), b"1")
        for key in keys_of_node_1(started):
            started.put(key.encode(), b"1")
        yield started


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of each batch that any node has received from another one."""
    received: list[int] = []
    parse = peer_reads._rows_answer

    def counted(head: dict[str, object], rows: list[RawRow]) -> object:
        received.append(len(rows))
        return parse(head, rows)

    monkeypatch.setattr(peer_reads, "_rows_answer", counted)
    return received


def keys_of_node_1(cluster: NodeCluster) -> list[str]:
    owners = cluster.placement.serving
    candidates = (f"other-{n:04d}" for n in range(1000))
    return [key for key in candidates if owners[partition_for(key.encode(), "murmur2", 6)] == (1,)][:100]


def keys_of(items: list[dict[str, str]]) -> list[str]:
    return [item["key"] for item in items]


def test_short_page_collects_few_rows_of_each_node(cluster: NodeCluster, batches: list[int]) -> None:
    """A page of 20 rows gets 16 rows of each of the two other nodes, which have about 200."""
    with cluster.nodes[0].client() as http:
        page = http.get("/v1/scan?limit=20").json()
    assert keys_of(page["items"]) == KEYS[:20]
    assert batches == [16, 16]


def test_batches_of_one_node_grow(cluster: NodeCluster, batches: list[int]) -> None:
    """If all rows of a page are on one node, its batches double until the page is full."""
    expected = keys_of_node_1(cluster)
    with cluster.nodes[0].client() as http:
        page = http.get("/v1/prefix/other-?limit=60").json()
    assert keys_of(page["items"]) == expected[:60]
    assert sorted(batches) == [0, 41, 59]  # two thirds of 61 rows; then all that are left


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("form", ["application/json", "application/x-ndjson"])
def test_pages_and_short_streams_have_every_row_once(cluster: NodeCluster, order: str, form: str) -> None:
    """Batches that are too short for a page change nothing in its rows."""
    expected = sorted([*KEYS, *keys_of_node_1(cluster)], reverse=order == "desc")
    with cluster.nodes[2].client() as http:
        if form == "application/x-ndjson":
            text = http.get(f"/v1/scan?order={order}&limit=650", headers={"accept": form}).text
            assert [line.split('"')[3] for line in text.splitlines()] == expected[:650]
            return
        found: list[str] = []
        cursor: str | None = ""
        while cursor is not None:
            page = http.get(f"/v1/scan?order={order}&limit=90{cursor}").json()
            found += keys_of(page["items"])
            cursor = page["cursor"] and f"&cursor={page['cursor']}"
    assert found == expected
