"""Test reads over many rows: pages, cursors, order, streams, counts."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.requests import Request

from queryable_app.client.placement_map import parse_placement
from queryable_app.policy.freshness import ReadOptions
from queryable_app.serve.api import keys as keys_routes
from queryable_app.serve.api import multi_get as multi_get_routes
from queryable_app.serve.api import scans as scans_routes
from queryable_app.serve.api.request import Parameters, read_options
from queryable_app.serve.reads.point import Reads
from tests.support.served import Served, served
from tests.support.waiting import eventually

NDJSON = {"accept": "application/x-ndjson"}
KEYS = sorted(
    [b"", b"a", b"a/b", b"ab", b"b", b"ba", b"b\xff", b"b\xff\xff", b"c", b"\xff", b"\xff\xffx", "é".encode()]
)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("scans"), partitions=3) as running:
        for number, key in enumerate(KEYS):
            running.put(key, b'{"n":\n%d}' % number)
        for key in (b"ax", b"bx"):
            running.put(key, b"1")
            running.put(key, None)
        yield running


def numbers(page: dict[str, Any]) -> list[int]:
    return [item["value"]["n"] for item in page["items"]]


def walk(http: httpx.Client, path: str, limit: int) -> list[int]:
    """Return the items of all pages."""
    found: list[int] = []
    sign, cursor = "&" if "?" in path else "?", ""
    while True:
        answer = http.get(f"{path}{sign}limit={limit}{cursor}")
        assert answer.status_code == 200, answer.text
        page = answer.json()
        assert len(page["items"]) <= limit
        found += numbers(page)
        if page["cursor"] is None:
            return found
        cursor = f"&cursor={page['cursor']}"


def test_page_describes_its_items_and_coverage(node: Served, http: httpx.Client) -> None:
    """Items have key, value, partition, offset and timestamp; the page states its coverage."""
    page = http.get("/v1/scan?limit=1").json()

    assert page["items"][0].keys() == {"key", "value", "partition", "offset", "timestamp"}
    assert (page["complete"], page["missing"]) == (True, [])
    assert page["positions"] == {str(p): c.position for p, c in node.node.replicas.by_partition.items()}
    assert page["cursor"]


@pytest.mark.parametrize("limit", [1, 2, 5, 100])
@pytest.mark.parametrize("order", ["asc", "desc"])
def test_pages_have_every_row_once_in_key_order(http: httpx.Client, limit: int, order: str) -> None:
    """Pages of any size cover all partitions, without deleted rows."""
    expected = list(range(len(KEYS)))

    assert walk(http, f"/v1/scan?order={order}", limit) == (expected if order == "asc" else expected[::-1])


def percent(key: bytes) -> str:
    return "".join(f"%{byte:02X}" for byte in key)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(
    start=st.none() | st.sampled_from(KEYS) | st.binary(max_size=3),
    stop=st.none() | st.sampled_from(KEYS) | st.binary(max_size=3),
    order=st.sampled_from(["asc", "desc"]),
    limit=st.integers(1, 5),
)
def test_range_includes_from_and_excludes_to(
    http: httpx.Client, start: bytes | None, stop: bytes | None, order: str, limit: int
) -> None:
    """Either end of a range may be open."""
    if start is not None and stop is not None and stop < start:
        start, stop = stop, start
    query = "".join(f"&{n}={percent(k)}" for n, k in (("from", start), ("to", stop)) if k is not None)
    expected = [n for n, k in enumerate(KEYS) if (start is None or k >= start) and (stop is None or k < stop)]

    found = walk(http, f"/v1/range?order={order}{query}", limit)
    assert found == (expected if order == "asc" else expected[::-1])


@pytest.mark.parametrize(
    "prefix", [b"", b"a", b"b", b"b\xff", b"\xff", b"\xff\xff", b"a/", b"zzz", b"\xc3"], ids=repr
)
def test_prefix_returns_the_keys_that_begin_with_it(http: httpx.Client, prefix: bytes) -> None:
    """A prefix is any bytes, percent-encoded; the empty prefix is a scan."""
    expected = [n for n, key in enumerate(KEYS) if key.startswith(prefix)]

    assert walk(http, f"/v1/prefix/{percent(prefix)}", 2) == expected
    assert walk(http, f"/v1/prefix/{percent(prefix)}?order=desc", 2) == expected[::-1]


def test_numbers_sort_as_numbers(tmp_path: Path) -> None:
    """Negative keys come first, ranges are by value, and a prefix of a number is refused."""
    with served(tmp_path, key={"format": "long"}) as node, node.client() as http:
        for number in (-5, 3, -1, 0, 7):
            node.put(struct.pack(">q", number), b"1")
        assert [i["key"] for i in http.get("/v1/scan").json()["items"]] == [-5, -1, 0, 3, 7]
        assert [i["key"] for i in http.get("/v1/range?from=-1&to=7").json()["items"]] == [-1, 0, 3]
        assert http.get("/v1/range?from=x").json()["detail"].startswith("from:")
        assert http.get("/v1/prefix/1").json()["reason"] == "invalid_request"


@pytest.mark.parametrize("schema_id", [None, 7])
@pytest.mark.parametrize("format", ["Avro", "Protobuf"])
def test_keys_with_a_schema_are_typed_on_every_path(
    tmp_path: Path, format: str, schema_id: int | None
) -> None:
    """Avro and Protobuf keys are written and sorted by their values, whatever their bytes in the topic are."""

    def of(type_: str) -> dict[str, Any]:
        field = "int64" if type_ == "long" else type_
        text = (
            f'syntax = "proto3"; message Key {{ {field} id = 4; }}' if format == "Protobuf" else f'"{type_}"'
        )
        source = {"inline": text} | ({} if schema_id is None else {"schemaId": schema_id})
        return {"format": format.lower(), "schemaFrom": source}

    with served(tmp_path / "long", key=of("long")) as node, node.client() as http:
        codec = node.node.codec
        for number in (-5, 300, -1, 0, 7):
            node.put(codec.from_json(number), b"1")
        assert [i["key"] for i in http.get("/v1/scan").json()["items"]] == [-5, -1, 0, 7, 300]
        assert [i["key"] for i in http.get("/v1/scan?order=desc&limit=2").json()["items"]] == [300, 7]
        assert [i["key"] for i in http.get("/v1/range?from=-1&to=300").json()["items"]] == [-1, 0, 7]
        assert http.get("/v1/keys/300").content == b"1"
        found = http.post("/v1/multi-get", json={"keys": [300, "-1", 8]}).json()["items"]
        assert [(item["key"], item["found"]) for item in found] == [(300, True), (-1, True), (8, False)]
        raw = base64.urlsafe_b64encode(codec.from_json(300)).decode()
        assert http.get(f"/v1/keys/{raw}?key-encoding=base64url").content == b"1"
        wrong = http.get("/v1/keys/AAAA?key-encoding=base64url")
        assert (wrong.status_code, f"the bytes are no {format} long" in wrong.json()["detail"]) == (400, True)
        assert http.get("/v1/keys/x").status_code == 400
        assert http.get("/v1/prefix/1").json()["reason"] == "invalid_request"
        written = (
            {"field": {"type": "int64", "number": 4, "alwaysWritten": False}} if format == "Protobuf" else {}
        )
        given = http.get("/v1/placement").json()
        assert given["keySchema"] == {"type": "long", "schemaId": schema_id, **written}
        assert parse_placement(given).codec == codec
    with served(tmp_path / "string", key=of("string")) as node, node.client() as http:
        for text in ("b", "a" * 40, "ab", "ä"):
            node.put(node.node.codec.from_text(text), b"1")
        assert [i["key"] for i in http.get("/v1/scan").json()["items"]] == ["a" * 40, "ab", "b", "ä"]
        assert [i["key"] for i in http.get("/v1/prefix/a").json()["items"]] == ["a" * 40, "ab"]
        assert http.get("/v1/keys/%C3%A4").content == b"1"


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("/v1/scan?limit=0", "limit"),
        ("/v1/scan?limit=-1", "limit"),
        ("/v1/scan?limit=1000000000", "limit"),
        ("/v1/scan?limit=ten", "limit"),
        ("/v1/scan?limit=1&limit=2", "limit"),
        ("/v1/scan?order=down", "order"),
        ("/v1/scan?cursor=abc", "cursor"),
        ("/v1/scan?cursor=", "cursor"),
        ("/v1/range?from=b&to=a", "to"),
        ("/v1/range?from=a&from=b", "from"),
        ("/v1/range?form=a", "form"),
        ("/v1/scan?partial=yes", "partial"),
        ("/v1/count?approximate=perhaps", "approximate"),
    ],
)
def test_wrong_parameter_is_named(http: httpx.Client, path: str, named: str) -> None:
    """A node names a wrong parameter and its allowed values."""
    answer = http.get(path)

    assert (answer.status_code, answer.json()["reason"]) == (400, "invalid_request")
    assert named in answer.json()["detail"].partition(":")[0]


def test_cursor_belongs_to_its_query(http: httpx.Client) -> None:
    """A node refuses a cursor for another path, bound or order."""
    cursor = http.get("/v1/range?from=a&limit=1").json()["cursor"]

    for other in ("/v1/scan?", "/v1/range?from=b&", "/v1/range?from=a&order=desc&", "/v1/prefix/a?"):
        answer = http.get(f"{other}cursor={cursor}")
        assert (answer.status_code, answer.json()["detail"].partition(":")[0]) == (400, "cursor")


def test_page_of_large_rows_ends_early(tmp_path: Path) -> None:
    """A page is also bounded in bytes; its cursor continues, and no row is lost."""
    with served(tmp_path, partitions=1) as node, node.client() as http:
        for number in range(6):
            node.put(b"%d" % number, b'{"n":%d,"x":"%b"}' % (number, b"x" * 3_000_000))
        page = http.get("/v1/scan").json()
        assert 1 <= len(page["items"]) < 6
        assert walk(http, "/v1/scan", 100) == list(range(6))


def test_stream_has_one_row_a_line(http: httpx.Client) -> None:
    """NDJSON has all rows, or up to the limit, each on one line whatever the producer sent."""
    lines = http.get("/v1/scan", headers=NDJSON).text.splitlines()
    assert [json.loads(line)["value"]["n"] for line in lines] == list(range(len(KEYS)))

    limited = http.get("/v1/scan?limit=3&order=desc", headers=NDJSON)
    assert limited.headers["content-type"] == "application/x-ndjson"
    assert [json.loads(line)["value"]["n"] for line in limited.text.splitlines()] == [11, 10, 9]
    assert http.head("/v1/scan", headers=NDJSON).status_code == 200


def test_count_is_exact_or_an_estimate(http: httpx.Client) -> None:
    """Neither counts deleted rows; the estimate of a few keys is exact."""
    exact, estimate = http.get("/v1/count").json(), http.get("/v1/count?approximate=true").json()

    assert (exact["count"], exact["approximate"], exact["complete"]) == (len(KEYS), False, True)
    assert (estimate["approximate"], estimate["count"]) == (True, len(KEYS))


def estimated_keys(http: httpx.Client) -> Any:
    return http.get("/v1/status").json()["partitions"][0]["estimatedKeys"]


def test_estimate_counts_keys_and_not_their_versions(tmp_path: Path) -> None:
    """Count, status and metrics estimate live keys, not versions or deleted keys. After a start, rows are read until the
    sweeper has seen all."""
    with served(tmp_path, partitions=1) as node, node.client() as http:
        for version in range(3):
            for number in range(440):
                node.put(b"user-%d" % number, None if version == 2 and number % 4 == 0 else b"%d" % version)
        assert http.get("/v1/count?approximate=true").json()["count"] == 330
        assert estimated_keys(http) == 330
        assert 'qt_store_keys{partition="0"} 330.0' in http.get("/metrics").text

    with served(tmp_path, partitions=1) as node, node.client() as http:
        assert http.get("/v1/count?approximate=true").json()["count"] == 330
        assert estimated_keys(http) is None
        assert "qt_store_keys{" not in http.get("/metrics").text


def test_estimate_counts_a_key_once_with_mixed_producers(tmp_path: Path) -> None:
    """A key with rows in several partitions is one key."""
    with served(tmp_path, partitions=3) as node, node.client() as http:
        for partition in range(3):
            node.put(b"a", b"1", partition=partition)
        assert http.get("/v1/status").json()["partitioner"]["inUse"] == "scatter"
        assert http.get("/v1/count?approximate=true").json()["count"] == 1


def test_missing_partition_is_named(tmp_path: Path) -> None:
    """A read gets 503 that names a missing partition; with partial=allow it gets the rest, and the page names it."""
    with served(tmp_path, partitions=3) as node, node.client() as http:
        node.fill(30)
        node.on_loop(lambda: node.node.replicas.by_partition[1].note_end_offset(1, 10**6))
        for path in ("/v1/scan?", "/v1/range?", "/v1/prefix/key?", "/v1/count?"):
            refused = http.get(path + "max-lag-records=10")
            assert (refused.status_code, refused.json()["reason"], refused.json()["missing"]) == (
                503, "not_fresh_enough", [1])  # fmt: skip
            part = http.get(path + "max-lag-records=10&partial=allow").json()
            assert (part["complete"], part["missing"], "1" in part["positions"]) == (False, [1], False)
            if "items" in part:
                assert {item["partition"] for item in part["items"]} == {0, 2}
        keys = [f"key-{n:06d}" for n in range(30)]
        part = http.post("/v1/multi-get?max-lag-records=10&partial=allow", json={"keys": keys}).json()
        assert {i["partition"]: i["found"] for i in part["items"]} == {0: True, 1: None, 2: True}


def make_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Block the event loop past each deadline, so that everything that waits for it is due at once."""

    def then_late(request: Request, values: Parameters, reads: Reads) -> tuple[ReadOptions, float]:
        options, deadline = read_options(request, values, reads)
        asyncio.get_running_loop().call_at(deadline - 0.03, time.sleep, 0.06)
        return options, deadline

    monkeypatch.setattr(keys_routes, "read_options", then_late)
    for module in (multi_get_routes, scans_routes):
        monkeypatch.setattr(module, "multi_read_options", then_late)


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("GET", "/v1/scan", {}),
        ("GET", "/v1/scan", NDJSON),
        ("GET", "/v1/count", {}),
        ("POST", "/v1/multi-get", {}),
        ("GET", "/v1/keys/key-000001", {}),
    ],
)
@pytest.mark.parametrize("late", [False, True], ids=["in time", "when the event loop is late"])
def test_replica_that_does_not_catch_up_in_time_is_not_fresh_enough(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    path: str,
    headers: dict[str, str],
    late: bool,
) -> None:
    """The failure says what is missing, not that the deadline has passed."""

    if late:
        make_late(monkeypatch)
    with served(tmp_path, partitions=2) as node, node.client(headers=headers) as http:
        node.fill(10)
        keys = {"keys": [f"key-{n:06d}" for n in range(10)]} if method == "POST" else None
        answer = http.request(method, f"{path}?min-position=0:99,1:99&deadline-ms=1000", json=keys)
        assert (answer.status_code, answer.json()["reason"]) == (503, "not_fresh_enough")


def test_partial_read_has_time_after_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With partial=allow, waiting for a replica takes half of the time, and the answer has the other partitions."""
    make_late(monkeypatch)
    with served(tmp_path, partitions=2) as node, node.client() as http:
        node.fill(10)
        part = http.get("/v1/scan?min-position=0:99&deadline-ms=2000&partial=allow")
        assert (part.status_code, part.json()["missing"]) == (200, [0])
        assert part.json()["items"]


def test_deadline_ends_a_long_read(tmp_path: Path) -> None:
    """A long read ends in deadline_exceeded, with advice."""
    with served(tmp_path, partitions=1) as node, node.client() as http:
        node.fill(50_000)
        answer = http.get("/v1/count?deadline-ms=1")
        assert (answer.status_code, answer.json()["reason"]) == (504, "deadline_exceeded")


def live_versions(node: Served) -> int:
    """Return the number of files that RocksDB keeps for readers: more than one while an iterator is open over an older
    state."""
    store = node.node.replicas.by_partition[0].store

    def look() -> int:
        store._db.put(b"zzz", b"\0" * 25)
        store._db.flush()
        return int(store._db.property_int_value("rocksdb.num-live-versions") or 0)

    return node.on_loop(look)


def test_disconnected_client_releases_the_store(tmp_path: Path) -> None:
    """When a client disconnects in the middle of a stream, the iterator closes and the request ends."""
    with served(tmp_path, partitions=1) as node:
        node.fill(50_000, lambda n: b'"%b"' % (b"x" * 200))
        with socket.create_connection(("127.0.0.1", node.port), timeout=10) as connection:
            connection.sendall(b"GET /v1/scan HTTP/1.1\r\nHost: x\r\nAccept: application/x-ndjson\r\n\r\n")
            assert connection.recv(1000).startswith(b"HTTP/1.1 200")
            assert live_versions(node) > 1
        eventually("the request ends", lambda: node.node.counters.in_flight == 0)
        eventually("the store is released", lambda: live_versions(node) == 1)


def test_broken_stream_has_no_last_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect in the middle of a stream ends the connection without the last chunk."""
    with served(tmp_path, partitions=1) as node:
        node.fill(5_000)
        node.put(b"key-002000x", b"1")
        store = node.node.replicas.by_partition[0].store
        node.on_loop(lambda: store._db.put(b"key-002000x", b"short"))
        with node.client() as http, pytest.raises(httpx.RemoteProtocolError):
            http.get("/v1/scan", headers=NDJSON)


def test_point_reads_are_answered_during_a_scan(tmp_path: Path) -> None:
    """A long stream yields to point reads."""
    with served(tmp_path, partitions=2) as node, node.client() as http:
        node.fill(100_000)
        read = 0
        with http.stream("GET", "/v1/scan", headers=NDJSON) as stream:
            for number, _ in enumerate(stream.iter_bytes(65536)):
                if number % 20 == 0:
                    with node.client() as other:
                        assert other.get("/v1/keys/key-000001").json() == {"n": 1}
                    read += 1
        assert read > 1
