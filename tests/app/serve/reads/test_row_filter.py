"""Reads with conditions: the rows that match, each once, over several nodes and pages, within the bounds of one page."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from queryable_app.serve.api import scans as scans_routes
from queryable_app.serve.base import look_budget
from queryable_app.serve.base.look_budget import LookBudget
from queryable_app.serve.reads import peer_reads, scans
from queryable_app.wire.partitioners import partition_for
from queryable_app.wire.where import parse_where
from tests.support.node_cluster import NodeCluster, node_cluster, three_nodes

NDJSON = {"accept": "application/x-ndjson"}
ROWS = {f"key-{n:04d}": {"n": n, "even": n % 2 == 0, "name": f"name {n % 7}"} for n in range(900)}

CONDITIONS: list[tuple[str, Callable[[dict[str, Any]], bool]]] = [
    ("n < 5", lambda row: row["n"] < 5),
    ("n >= 895", lambda row: row["n"] >= 895),
    ("even = true and name in ('name 3', 'name 4')", lambda row: row["even"] and row["name"][-1] in "34"),
    ("name like 'name 6%' or n = 0", lambda row: row["name"] == "name 6" or row["n"] == 0),
    ("n is null", lambda row: False),
    ("n is not null", lambda row: True),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeCluster]:
    """Three nodes with one replica of each partition, with rows that were deleted or have expired."""
    with three_nodes(tmp_path_factory.mktemp("cluster"), 1) as started:
        for key, value in ROWS.items():
            started.put(key.encode(), json.dumps(value).encode())
        for n in range(60):
            started.put(b"key-%04d-deleted" % n, b'{"n": 1}')
            started.put(b"key-%04d-deleted" % n, None)
            started.put(b"key-%04d-expired" % n, b'{"n": 1}', expiry_ms=1)
        yield started


def small_pages(monkeypatch: pytest.MonkeyPatch, looks: int) -> None:
    """Let a page look at few rows, a node at few for one answer, and read them in short batches."""
    monkeypatch.setattr(
        scans_routes, "page_looks", lambda deadline: LookBudget(looks, look_budget.PAGE_LOOK_BYTES_MAX)
    )
    monkeypatch.setattr(scans, "BATCH_ROWS", 16)
    monkeypatch.setattr(peer_reads, "LOOKS_MAX", 40)
    monkeypatch.setattr(peer_reads, "LOOKS_MIN", 40)


def walk(http: httpx.Client, path: str, **parameters: Any) -> tuple[list[dict[str, Any]], int]:
    """Return the items of all pages, and the number of pages."""
    found: list[dict[str, Any]] = []
    for pages in range(1, 2000):
        answer = http.get(path, params=parameters)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        assert len(page["items"]) <= parameters.get("limit", 100)
        found += page["items"]
        if page["cursor"] is None:
            return found, pages
        parameters["cursor"] = page["cursor"]
    raise AssertionError("the pages do not end")


@pytest.mark.parametrize("looks", [1, 400])
@pytest.mark.parametrize("order", ["asc", "desc"])
def test_pages_have_every_row_that_matches_once(
    cluster: NodeCluster, monkeypatch: pytest.MonkeyPatch, looks: int, order: str
) -> None:
    """However few rows a page looks at, its cursor continues where it ended, at any node."""
    small_pages(monkeypatch, looks)
    for number, (where, matches) in enumerate(CONDITIONS[order == "desc" :: 2]):
        expected = sorted((key for key, row in ROWS.items() if matches(row)), reverse=order == "desc")
        with cluster.nodes[number % 3].client() as http:
            found, _ = walk(http, "/v1/scan", where=where, order=order, limit=40)
        assert [item["key"] for item in found] == expected, where
        assert all(item["value"] == ROWS[item["key"]] for item in found)


def test_page_without_a_match_has_a_cursor(cluster: NodeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that has looked at enough rows ends, also without items; the last page has no cursor."""
    small_pages(monkeypatch, 1)
    with cluster.nodes[0].client() as http:
        first = http.get("/v1/scan", params={"where": "n = -1"}).json()
        _, pages = walk(http, "/v1/scan", where="n = -1")
    assert (first["items"], first["complete"]) == ([], True)
    assert first["cursor"] is not None
    assert pages > 1


def test_page_ends_when_half_of_its_time_is_over(
    cluster: NodeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that has no more time to look ends with a cursor, also if the node is too busy for the rows of a page."""
    small_pages(monkeypatch, 1)
    monkeypatch.setattr(scans_routes, "page_looks", lambda deadline: look_budget.page_looks(0.0))
    with cluster.nodes[0].client() as http:
        page = http.get("/v1/scan", params={"where": "n = 899"}).json()
    assert (page["items"], page["cursor"] is None) == ([], False)


def test_full_page_does_not_look_further(cluster: NodeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page with all its rows ends at once, and does not search for one more to decide about the cursor."""
    budgets: list[LookBudget] = []

    def noted(deadline: float) -> LookBudget:
        budgets.append(LookBudget())
        return budgets[-1]

    monkeypatch.setattr(scans_routes, "page_looks", noted)
    with cluster.nodes[0].client() as http:
        page = http.get("/v1/prefix/key-0", params={"where": "n = 0", "limit": 1}).json()
    assert [item["key"] for item in page["items"]] == ["key-0000"]
    assert page["cursor"] is not None
    assert budgets[0].rows <= 3 * 512


def test_cursor_belongs_to_its_conditions(cluster: NodeCluster) -> None:
    """A cursor with other conditions, or without them, is refused."""
    with cluster.nodes[0].client() as http:
        cursor = http.get("/v1/scan", params={"where": "n > 1", "limit": 1}).json()["cursor"]
        for parameters in ({"where": "n > 2"}, {}):
            answer = http.get("/v1/scan", params=parameters | {"cursor": cursor})
            assert (answer.status_code, answer.json()["detail"]) == (400, "cursor: belongs to another query")


def test_range_and_stream_and_count_take_conditions(cluster: NodeCluster) -> None:
    """Ranges, streams and counts have the rows that match, and nothing else."""
    with cluster.nodes[1].client() as http:
        found, _ = walk(http, "/v1/range", **{"from": "key-0100", "to": "key-0110", "where": "even = true"})
        assert [item["value"]["n"] for item in found] == [100, 102, 104, 106, 108]
        for where, matches in CONDITIONS:
            expected = [key for key, row in ROWS.items() if matches(row)]
            lines = http.get("/v1/scan", params={"where": where}, headers=NDJSON).text.splitlines()
            assert [json.loads(line)["key"] for line in lines] == expected
            assert http.get("/v1/count", params={"where": where}).json()["count"] == len(expected)
        limited = http.get("/v1/scan", params={"where": "even = true", "limit": 3}, headers=NDJSON)
        assert [json.loads(line)["value"]["n"] for line in limited.text.splitlines()] == [0, 2, 4]


def test_estimate_with_conditions_is_refused(cluster: NodeCluster) -> None:
    """An estimate counts all keys, so it cannot count those that match."""
    with cluster.nodes[0].client() as http:
        answer = http.get("/v1/count", params={"where": "n = 1", "approximate": "true"})
    assert (answer.status_code, answer.json()["detail"]) == (400, "approximate: an estimate counts all keys")


@pytest.mark.parametrize(
    ("where", "detail"),
    [
        ("n = ", "where: at character 5: a field or a value is expected, not the end"),
        ("n = '" + "x" * (48 << 10) + "'", f"where: has {(48 << 10) + 6} bytes"),
    ],
    ids=["broken", "large"],
)
def test_refusal_names_the_parameter(cluster: NodeCluster, where: str, detail: str) -> None:
    """A text that is not understood or too long is 400 and says where."""
    with cluster.nodes[0].client() as http:
        for path in ("/v1/scan", "/v1/range", "/v1/prefix/a", "/v1/count"):
            answer = http.get(path, params={"where": where})
            assert (answer.status_code, answer.json()["detail"]) == (400, detail)


def test_point_reads_take_no_conditions(cluster: NodeCluster) -> None:
    """A read of a key has no rows to select."""
    with cluster.nodes[0].client() as http:
        answer = http.get("/v1/keys/key-0001", params={"where": "n = 1"})
    assert answer.json()["detail"] == "'where': is no parameter of this request"


def test_nodes_filter_their_own_rows(cluster: NodeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that do not match stay at their node: of 600 rows elsewhere, those that match and a marker are sent."""
    received: list[int] = []
    parse = peer_reads._rows_answer

    def counted(head: Any, rows: Any) -> Any:
        received.append(len(rows))
        return parse(head, rows)

    monkeypatch.setattr(peer_reads, "_rows_answer", counted)
    with cluster.nodes[0].client() as http:
        assert http.get("/v1/scan", params={"where": "n = 500"}).json()["items"]
    assert sum(received) <= 1 + 2 * len(received)


def test_node_of_an_earlier_version_sends_all_rows(
    cluster: NodeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If another node ignores the conditions, the node that merges the rows applies them."""
    monkeypatch.setattr(peer_reads.PeerFilter, "to_json", lambda self: {})
    with cluster.nodes[0].client() as http:
        found, _ = walk(http, "/v1/scan", where="n >= 895", limit=2)
    assert [item["value"]["n"] for item in found] == [895, 896, 897, 898, 899]


def test_count_of_an_earlier_version_is_refused() -> None:
    """A count that ignores the conditions is not taken for one that does not."""
    where = parse_where(b"n = 1")
    with pytest.raises(ValueError, match="a node of an earlier version counts all rows"):
        peer_reads._count_answer(where, {"count": 900}, [])
    assert peer_reads._count_answer(where, {"count": 1, "where": "n = 1"}, []) == 1


def test_peer_answer_is_bounded(cluster: NodeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node looks at a bounded number of rows for one answer, says how many, and sends one row in place of all others."""
    answers: list[tuple[int, int]] = []
    parse = peer_reads._rows_answer

    def noted(head: Any, rows: Any) -> Any:
        answers.append((head["looked"][0], len(rows)))
        return parse(head, rows)

    small_pages(monkeypatch, 100_000)
    monkeypatch.setattr(peer_reads, "_rows_answer", noted)
    with cluster.nodes[0].client() as http:
        found, _ = walk(http, "/v1/scan", where="n in (3, 899)")
    assert [item["value"]["n"] for item in found] == [3, 899]
    assert len(answers) > 10
    assert max(looked for looked, _ in answers) < 40 + 16
    assert max(sent for _, sent in answers) <= 2


def test_newest_row_of_a_key_decides(tmp_path: Path) -> None:
    """Where producers wrote a key to several partitions, an older row that matches does not count."""
    with node_cluster(tmp_path, 2, 1) as nodes:
        for n in range(40):
            nodes.put(b"key-%02d" % n, b'{"state": "open"}', timestamp_ms=1000)
        for n in range(0, 40, 2):  # to another partition than murmur2 names
            key = b"key-%02d" % n
            other = (partition_for(key, "murmur2", 6) + 1) % 6
            nodes.put(key, b'{"state": "closed"}' if n % 4 else None, partition=other, timestamp_ms=2000)
        with nodes.nodes[0].client() as http:
            for state, expected in (("open", range(1, 40, 2)), ("closed", range(2, 40, 4))):
                found, _ = walk(http, "/v1/scan", where=f"state = '{state}'", limit=7)
                assert [item["key"] for item in found] == [f"key-{n:02d}" for n in expected]
                counted = http.get("/v1/count", params={"where": f"state = '{state}'"}).json()["count"]
                assert counted == len(expected)
