"""Test reads of the entries of a key: their order and bounds, pages, over several nodes, and refusals."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from queryable_app.aggregates.clock import TIME_MAX_MS, TIME_MIN_MS
from queryable_app.placement.assignment import Placement
from queryable_app.serve.api.entries import OTHER_PATHS
from queryable_app.wire.partitioners import partition_for
from queryable_app.wire.times import parse_time, to_iso
from tests.support.entries import HOUR_MS, Entry, Fold, Record, folded, row_of, view
from tests.support.node_cluster import APPLICATION_ID, NodeCluster
from tests.support.served import Served, served

NOON = 1_795_348_800_000  # 2026-11-22T12:00:00Z
MINUTE = 60_000
KEYS = [b"", b"a", b"a/b", b"a\0", b"b", b"caf\xc3\xa9", b"\xff"]
EDGES = [Record(b"edges", time, b"1") for time in (0, -1, TIME_MIN_MS, TIME_MAX_MS, NOON)]
RECORDS = [
    *(Record(key, NOON + (n * 7 % 20) * MINUTE, b'{"n":%d}' % n) for n in range(40) for key in KEYS),
    *EDGES,
    Record(b"deleted", NOON),
    Record(b"deleted", 0, None),
]


def fill(nodes: Sequence[Served], placement: Placement, records: Sequence[Record]) -> list[Fold]:
    """Send each record to the replicas of its partition, and return what each partition must have."""
    folds = []
    for partition in range(placement.partitions):
        of_partition = [
            each for each in records if partition_for(each.key, "murmur2", placement.partitions) == partition
        ]
        rows = [row_of(offset, record) for offset, record in enumerate(of_partition)]
        for ordinal in placement.serving[partition]:
            for start in range(0, len(rows), 1000):
                nodes[ordinal].put_slice(*rows[start : start + 1000], partition=partition)
        folds.append(folded(of_partition))
    return folds


FOLDS: dict[str, list[Fold]] = {}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("entries"), partitions=3, view=view()) as running:
        FOLDS["one"] = fill([running], running.node.placement, RECORDS)
        yield running


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeCluster]:
    """Run three nodes with three partitions, each on two of them."""
    placement = Placement(1, APPLICATION_ID, ("",) * 3, ((0, 1), (1, 2), (2, 0)), ((), (), ()))
    with NodeCluster(tmp_path_factory.mktemp("nodes"), [placement] * 3, view=view()) as cluster:
        fill(cluster.nodes, cluster.placement, RECORDS)
        yield cluster


def fold_of(key: bytes, partitions: int = 3) -> Fold:
    return FOLDS["one"][partition_for(key, "murmur2", partitions)]


def url_key(key: bytes) -> str:
    return "".join(f"%{byte:02X}" for byte in key)


def entry(item: dict[str, Any]) -> Entry:
    time_ms = parse_time(item["time"])
    assert time_ms is not None
    return Entry(time_ms, item["offset"], json.dumps(item["value"], separators=(",", ":")).encode())


def walk(http: httpx.Client, path: str, limit: int, **parameters: Any) -> list[Entry]:
    """Return the entries of all pages."""
    found: list[Entry] = []
    given = {name: value for name, value in parameters.items() if value is not None}
    while True:
        answer = http.get(path, params={"limit": limit, **given})
        assert answer.status_code == 200, answer.text
        page = answer.json()
        assert page["complete"]
        assert len(page["items"]) <= limit
        found += map(entry, page["items"])
        if page["cursor"] is None:
            return found
        given["cursor"] = page["cursor"]


def test_entries_of_a_key(http: httpx.Client) -> None:
    """The entries of a key come by their times, each with its value and where its record is, and how fresh the replica is."""
    answer = http.get("/v1/entries/a")
    items = answer.json()["items"]
    assert [*map(entry, items)] == fold_of(b"a").between(b"a")
    assert items[0] == {
        "key": "a",
        "time": "2026-11-22T12:00:00.000Z",
        "value": {"n": 0},
        "partition": partition_for(b"a", "murmur2", 3),
        "offset": items[0]["offset"],
        "timestamp": 5,
    }
    assert int(answer.headers["qt-lag-records"]) == 0
    assert answer.headers["qt-position"]


@pytest.mark.parametrize("key", KEYS)
def test_every_byte_string_is_a_key(http: httpx.Client, key: bytes) -> None:
    """Every byte string has its own entries, also where one is the beginning of another."""
    assert walk(http, f"/v1/entries/{url_key(key)}", 7) == fold_of(key).between(key)


def test_key_without_entries_has_an_empty_page(http: httpx.Client) -> None:
    """A key without entries, and one whose tombstone deleted them, have an empty page as of a position."""
    for key in ("absent", "deleted"):
        answer = http.get(f"/v1/entries/{key}")
        assert (answer.status_code, answer.json()["items"], answer.json()["cursor"]) == (200, [], None)
        assert answer.headers["qt-position"]


@given(
    st.sampled_from(KEYS),
    st.none() | st.integers(-1, 21),
    st.none() | st.integers(0, 21),
    st.sampled_from(["asc", "desc"]),
    st.integers(1, 50),
    st.integers(0, 2),
)
def test_every_node_has_the_entries_of_the_fold(
    node: Served,
    nodes: NodeCluster,
    key: bytes,
    first: int | None,
    minutes: int | None,
    order: str,
    limit: int,
    asked: int,
) -> None:
    """One node, and each of three, answer any range of times in any order and size of pages as the fold of the topic has it."""
    assert node.node.entries is not None
    first_ms = None if first is None else NOON + first * MINUTE
    after_ms = None if minutes is None else (first_ms or NOON) + minutes * MINUTE
    expected = fold_of(key).between(key, first_ms, after_ms, order == "desc")
    for running in (node, nodes.nodes[asked]):
        with running.client() as http:
            parameters = {"from": first_ms, "to": after_ms, "order": order}
            assert walk(http, f"/v1/entries/{url_key(key)}", limit, **parameters) == expected


def test_every_node_of_a_view_answers_when_one_stops(tmp_path: Path) -> None:
    """When a node stops, the others answer from the standby replicas."""
    placement = Placement(1, APPLICATION_ID, ("",) * 2, ((0, 1), (1, 0)), ((), ()))
    with NodeCluster(tmp_path, [placement] * 2, view=view()) as cluster:
        folds = fill(cluster.nodes, cluster.placement, RECORDS)
        cluster.stop(0)
        with cluster.nodes[1].client() as http:
            for key in KEYS:
                of_key = folds[partition_for(key, "murmur2", 2)].between(key)
                path = f"/v1/entries/{url_key(key)}?consistency=any"
                assert [*map(entry, http.get(path).json()["items"])] == of_key


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ({}, [TIME_MIN_MS, -1, 0, NOON, TIME_MAX_MS]),
        ({"from": "0001-01-01T00:00:00Z"}, [TIME_MIN_MS, -1, 0, NOON, TIME_MAX_MS]),
        ({"from": "-000001-01-01T00:00:00Z"}, [TIME_MIN_MS, -1, 0, NOON, TIME_MAX_MS]),
        ({"to": "0001-01-01T00:00:00Z"}, []),
        ({"to": "-000001-01-01T00:00:00Z"}, []),
        ({"to": "0001-01-01T00:00:00.001Z"}, [TIME_MIN_MS]),
        ({"from": "9999-12-31T23:59:59.999Z"}, [TIME_MAX_MS]),
        ({"to": "9999-12-31T23:59:59.999Z"}, [TIME_MIN_MS, -1, 0, NOON]),
        ({"from": str((1 << 63) - 1)}, []),
        ({"to": str((1 << 63) - 1)}, [TIME_MIN_MS, -1, 0, NOON, TIME_MAX_MS]),
        ({"from": str(-(1 << 63)), "to": "0"}, [TIME_MIN_MS, -1]),
        ({"from": "1970-01-01", "to": "2026-11-22T12:00:00.001"}, [0, NOON]),
        ({"from": str(NOON), "to": str(NOON)}, []),
        ({"from": "2026-11-22T13:00:00+01:00", "to": "9999-01-01"}, [NOON]),
    ],
)
def test_bounds_at_the_ends_of_the_calendar(
    http: httpx.Client, bounds: dict[str, str], expected: list[int]
) -> None:
    """Bounds are ISO 8601 or milliseconds, from the year 1 to the year 9999 and beyond, in both orders."""
    for order, times in (("asc", expected), ("desc", expected[::-1])):
        found = walk(http, "/v1/entries/edges", 2, order=order, **bounds)
        assert [each.time_ms for each in found] == times


def test_conditions_and_fields(http: httpx.Client) -> None:
    """`where` selects entries by their values over all pages, and `fields` returns the named fields alone."""
    found = walk(http, "/v1/entries/a", 3, where="n >= 10 and n < 30")
    assert found == [each for each in fold_of(b"a").between(b"a") if 10 <= json.loads(each.value)["n"] < 30]
    items = http.get("/v1/entries/a", params={"fields": "absent", "limit": 2}).json()["items"]
    assert [item["value"] for item in items] == [{}, {}]


def test_newest_entry(http: httpx.Client) -> None:
    """With order=desc and limit=1 the newest entry of a key is read; of equal times the one with the greatest offset."""
    items = http.get("/v1/entries/a?order=desc&limit=1").json()["items"]
    assert [entry(items[0])] == fold_of(b"a").between(b"a")[-1:]


def test_stream_of_entries(http: httpx.Client) -> None:
    """As NDJSON the entries come one a line, and a limit ends them."""
    lines = http.get("/v1/entries/b", headers={"accept": "application/x-ndjson"}).text.splitlines()
    assert [entry(json.loads(line)) for line in lines] == fold_of(b"b").between(b"b")
    some = http.get("/v1/entries/b?limit=3&order=desc", headers={"accept": "application/x-ndjson"}).text
    assert [entry(json.loads(line)) for line in some.splitlines()] == fold_of(b"b").between(b"b")[:-4:-1]


def test_retention_follows_the_partitions_clock(tmp_path: Path) -> None:
    """Entries that the newest time of their partition has passed by the retention are not answered, swept or not."""
    sent = [Record(b"k", NOON + n * MINUTE) for n in range(100)]
    with served(tmp_path, partitions=1, view=view(retention="1h")) as running, running.client() as http:
        fill([running], running.node.placement, sent)
        expected = folded(sent, HOUR_MS).between(b"k")
        assert len(expected) == 61
        assert walk(http, "/v1/entries/k", 10) == expected
        assert walk(http, "/v1/entries/k", 10, **{"from": 0, "order": "desc"}) == expected[::-1]
        assert walk(http, "/v1/entries/k", 10, where="n is null") == expected
        status = http.get("/v1/status").json()["partitions"][0]
        assert (status["watermark"], status["lateRecords"]) == (to_iso(expected[0].time_ms), 0)
        metrics = http.get("/metrics").text
        assert re.search(r'qt_watermark_seconds\{partition="0"\} 1\.7953', metrics)
        assert 'qt_late_records_total{partition="0"} 0.0' in metrics


def test_view_without_retention_has_no_watermark(http: httpx.Client) -> None:
    """Without a retention, entries never expire, and there is no time of the oldest one."""
    assert {each["watermark"] for each in http.get("/v1/status").json()["partitions"]} == {None}
    assert "qt_watermark_seconds{" not in http.get("/metrics").text


def test_entries_of_a_key_in_several_partitions(tmp_path: Path) -> None:
    """If producers write a key to several partitions, its entries of all of them are merged by time, and equal offsets are two
    entries."""
    times = [NOON, NOON + MINUTE]
    with (
        served(tmp_path, partitions=2, partitioner="scatter", view=view()) as running,
        running.client() as http,
    ):
        for partition in (0, 1):
            rows = [
                row_of(offset, Record(b"k", time, b"%d" % partition)) for offset, time in enumerate(times)
            ]
            running.put_slice(*rows, partition=partition)
        found = walk(http, "/v1/entries/k", 1)
    assert [(each.time_ms, each.value) for each in found] == [
        (times[0], b"0"), (times[0], b"1"), (times[1], b"0"), (times[1], b"1"),
    ]  # fmt: skip


def test_key_with_many_entries(tmp_path: Path) -> None:
    """A key with 100 000 entries is read by pages and by a range in its middle, and deleted at once by a tombstone."""
    sent = [Record(b"k", NOON + n, b"%d" % n) for n in range(100_000)]
    with served(tmp_path, partitions=1, view=view()) as running, running.client() as http:
        fill([running], running.node.placement, sent)
        middle = walk(http, "/v1/entries/k", 1000, **{"from": NOON + 50_000, "to": NOON + 52_500})
        assert [each.offset for each in middle] == list(range(50_000, 52_500))
        last = http.get("/v1/entries/k?order=desc&limit=2").json()["items"]
        assert [item["value"] for item in last] == [99_999, 99_998]
        lines = http.get("/v1/entries/k", headers={"accept": "application/x-ndjson"}).text.splitlines()
        assert len(lines) == 100_000
        running.put_slice(row_of(100_000, Record(b"k", 0, None)))
        assert http.get("/v1/entries/k").json()["items"] == []


def test_large_values_end_a_page(tmp_path: Path) -> None:
    """A page of values of 1 MiB ends before its limit, and its cursor goes on with the next one."""
    value = b'"%b"' % (b"x" * (1 << 20))
    with served(tmp_path, partitions=1, view=view()) as running, running.client() as http:
        for n in range(20):
            running.put_slice(row_of(n, Record(b"k", NOON + n, value)))
        assert len(http.get("/v1/entries/k?limit=20").json()["items"]) < 20
        found = walk(http, "/v1/entries/k", 20)
    assert [each.offset for each in found] == list(range(20))
    assert {each.value for each in found} == {value}


@pytest.mark.parametrize(
    ("query", "field"),
    [
        (f"from={NOON}&to={NOON - 1}", "to"),
        ("from=soon", "from"),
        ("to=", "to"),
        (f"from={1 << 63}", "from"),
        ("from=1&from=2", "from"),
        ("limit=0", "limit"),
        ("limit=-1", "limit"),
        ("limit=1000000000", "limit"),
        ("limit=x", "limit"),
        ("order=newest", "order"),
        ("cursor=x", "cursor"),
        ("cursor=", "cursor"),
        ("where=n%20~%201", "where"),
        ("since=1", "since"),
        ("key-encoding=hex", "key-encoding"),
    ],
)
def test_rubbish_is_refused(http: httpx.Client, query: str, field: str) -> None:
    """A wrong parameter is refused by name."""
    answer = http.get(f"/v1/entries/a?{query}")
    assert (answer.status_code, answer.json()["reason"]) == (400, "invalid_request")
    assert field in answer.json()["detail"]


def test_cursors_belong_to_their_query(http: httpx.Client) -> None:
    """A cursor is refused with another key, range, order or condition, and after a change of any of its characters."""
    cursor = http.get("/v1/entries/a?limit=3").json()["cursor"]
    for path in (
        f"/v1/entries/b?cursor={cursor}",
        f"/v1/entries/a?from=0&cursor={cursor}",
        f"/v1/entries/a?order=desc&cursor={cursor}",
        f"/v1/entries/a?where=n%3D1&cursor={cursor}",
        *(f"/v1/entries/a?cursor={cursor[:n]}{'B' if cursor[n] == 'A' else 'A'}{cursor[n + 1:]}" for n in range(len(cursor))),
        f"/v1/entries/a?cursor={cursor[:-1]}",
    ):  # fmt: skip
        answer = http.get(path)
        assert (answer.status_code, answer.json()["detail"].split(":")[0]) == (400, "cursor"), path


@pytest.mark.parametrize("path", [*OTHER_PATHS, "/v1/keys/a", "/v1/windows/a", "/v1/index/x"])
def test_other_reads_say_where_entries_are(http: httpx.Client, path: str) -> None:
    """A view of entries has no single values: other reads are refused, with the read of the newest entry."""
    for method in ("GET", "POST") if path == "/v1/multi-get" else ("GET",):
        answer = http.request(method, path, json={"keys": ["a"]} if method == "POST" else None)
        assert (answer.status_code, answer.json()["reason"]) == (404, "no_such_resource")
        assert "/v1/entries/{key}?order=desc&limit=1" in answer.json()["advice"]


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_entries_of_all_keys(http: httpx.Client, nodes: NodeCluster, order: str) -> None:
    """Without a key the entries of all keys of all partitions come by key and time, from any node. They have no bounds of
    time."""
    keys = sorted({each.key for each in RECORDS}, reverse=order == "desc")
    expected = [each for key in keys for each in fold_of(key).between(key, newest_first=order == "desc")]
    assert walk(http, "/v1/entries", 9, order=order) == expected
    with nodes.nodes[2].client() as other:
        assert walk(other, "/v1/entries", 50, order=order) == expected
    refused = http.get("/v1/entries?from=0")
    assert (refused.status_code, refused.json()["reason"]) == (400, "invalid_request")
    assert "from" in refused.json()["detail"]


def test_other_views_have_no_entries(tmp_path: Path) -> None:
    """A view without entries refuses their path with a sentence."""
    with served(tmp_path) as running, running.client() as http:
        answer = http.get("/v1/entries/a")
    assert (answer.status_code, answer.json()["reason"]) == (404, "no_such_resource")
    assert "spec.view.entries" in answer.json()["advice"]


def test_answers_fit_the_openapi_document(http: httpx.Client) -> None:
    """Answers have the fields that the OpenAPI document describes, which has the path of entries and none of other views."""
    document = http.get("/openapi.json").json()
    public = {path for path in document["paths"] if path.startswith("/v1/")}
    assert public == {
        "/v1/entries",
        "/v1/entries/{key}",
        "/v1/records",
        "/v1/records/{key}",
        "/v1/status",
        "/v1/placement",
    }
    content = document["paths"]["/v1/entries/{key}"]["get"]["responses"]["200"]["content"]
    page = Draft202012Validator(content["application/json"]["schema"])
    for path in ("a", "absent", "%FF?limit=1", "a?fields=n"):
        page.validate(http.get(f"/v1/entries/{path}").json())
    one = Draft202012Validator(content["application/x-ndjson"]["schema"])
    line = http.get("/v1/entries/a?limit=1", headers={"accept": "application/x-ndjson"}).text
    one.validate(json.loads(line))
