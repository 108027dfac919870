"""Test reads of windows: of one key, of all keys and nodes, of one window, and their refusals."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from queryable_app.placement.assignment import Placement
from queryable_app.wire.partitioners import partition_for
from queryable_app.wire.times import parse_time, to_iso
from tests.support.node_cluster import APPLICATION_ID, NodeCluster
from tests.support.served import Served, exchange, parsed, served
from tests.support.windows import Record, row_of, view

NOON = 1_795_348_800_000  # 2026-11-22T12:00:00Z
MINUTE = 60_000
VIEW = view(size="1m", grace="10s", retention="1h")
KEYS = sorted([b"", b"a", b"a/b", b"a\0", b"b", b"caf\xc3\xa9", b"\xff"])
RECORDS = [Record(key, NOON + minute * MINUTE, minute) for minute in range(11) for key in KEYS]
STARTS = [NOON + minute * MINUTE for minute in range(11)]


def fill(nodes: Sequence[Served], placement: Placement, records: Sequence[Record]) -> None:
    """Send each record to the replicas of its partition, one slice for each."""
    for partition in range(placement.partitions):
        of_partition = [
            each for each in records if partition_for(each.key, "murmur2", placement.partitions) == partition
        ]
        rows = [row_of(offset, record) for offset, record in enumerate(of_partition)]
        for ordinal in placement.serving[partition]:
            nodes[ordinal].put_slice(*rows, partition=partition)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("windows"), partitions=3, view=VIEW) as running:
        fill([running], running.node.placement, RECORDS)
        yield running


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeCluster]:
    """Run three nodes, each with one of three partitions."""
    placement = Placement(1, APPLICATION_ID, ("",) * 3, ((0,), (1,), (2,)), ((), (), ()))
    with NodeCluster(tmp_path_factory.mktemp("nodes"), [placement] * 3, view=VIEW) as cluster:
        fill(cluster.nodes, cluster.placement, RECORDS)
        yield cluster


def shown(item: dict[str, Any]) -> tuple[str, int]:
    """Return the key and the start of an item."""
    start = parse_time(item["window"]["start"])
    assert start is not None
    return item["key"], start


def text(key: bytes) -> str:
    """Return a key as an item has it."""
    try:
        return key.decode()
    except UnicodeDecodeError:
        return "_w"


def walk(http: httpx.Client, path: str, limit: int) -> list[tuple[str, int]]:
    """Return the windows of all pages."""
    found: list[tuple[str, int]] = []
    sign, cursor = "&" if "?" in path else "?", ""
    while True:
        answer = http.get(f"{path}{sign}limit={limit}{cursor}")
        assert answer.status_code == 200, answer.text
        page = answer.json()
        assert page["complete"]
        assert len(page["items"]) <= limit
        found += map(shown, page["items"])
        if page["cursor"] is None:
            return found
        cursor = f"&cursor={page['cursor']}"


def test_windows_of_a_key(http: httpx.Client) -> None:
    """The windows of a key come by their starts, with what they hold and whether they are final."""
    items = http.get("/v1/windows/a").json()["items"]

    assert [shown(item) for item in items] == [("a", start) for start in STARTS]
    assert items[3] == {
        "key": "a",
        "window": {"start": to_iso(STARTS[3]), "end": to_iso(STARTS[4]), "final": True},
        "value": {"n": 1, "total": 3, "first": 3, "last": 3},
        "partition": partition_for(b"a", "murmur2", 3),
        "offset": items[3]["offset"],
        "timestamp": STARTS[3],
    }
    # The watermark is the time of the last record minus the grace.
    assert [item["window"]["final"] for item in items] == [True] * 9 + [False] * 2


@pytest.mark.parametrize("path", ["/v1/windows", "/v1/windows/a"])
def test_conditions_are_about_what_a_window_holds(http: httpx.Client, path: str) -> None:
    """`where` selects windows by the results of their columns."""
    parameters: dict[str, str | int] = {"from": STARTS[1], "to": STARTS[8], "where": "total >= 6 and n = 1"}
    items = http.get(path, params=parameters).json()["items"]
    keys = sorted(map(text, KEYS)) if path == "/v1/windows" else ["a"]
    assert sorted(map(shown, items)) == [(key, start) for key in keys for start in STARTS[6:8]]


def test_conditions_on_sessions(tmp_path: Path) -> None:
    """The value of a session is what is answered, without what is stored behind it."""
    with served(tmp_path, partitions=1, view=view(sessionGap="1m")) as running, running.client() as http:
        fill([running], running.node.placement, [Record(b"a", NOON + n * 10 * MINUTE, n) for n in range(4)])
        items = http.get("/v1/windows", params={"where": "first = 2 or last = 3"}).json()["items"]
    assert [item["value"]["total"] for item in items] == [2, 3]


@pytest.mark.parametrize(
    "times",
    [
        f"from={STARTS[2]}&to={STARTS[5]}",
        "from=2026-11-22T12:02:00Z&to=2026-11-22T12:05:00Z",
        "from=2026-11-22T12:01:00.001Z&to=2026-11-22T13:04:00.001%2B01:00",
        "from=2026-11-22T12:02&to=2026-11-22T14:05:00+02:00",
    ],
)
def test_times_bound_the_starts(http: httpx.Client, times: str) -> None:
    """`from` is the first start and `to` the first that is not wanted, as ISO 8601 or milliseconds."""
    expected = STARTS[2:5]
    assert [start for _, start in walk(http, f"/v1/windows/a?{times}", 100)] == expected
    assert walk(http, f"/v1/windows?{times}", 2) == [(text(key), start) for key in KEYS for start in expected]


@pytest.mark.parametrize("limit", [1, 7, 1000])
@pytest.mark.parametrize("order", ["asc", "desc"])
def test_pages_have_every_window_once(http: httpx.Client, limit: int, order: str) -> None:
    """Pages of any size have all windows by key and start, over all partitions."""
    expected = [(text(key), start) for key in KEYS for start in STARTS]
    expected = expected if order == "asc" else expected[::-1]

    assert walk(http, f"/v1/windows?order={order}", limit) == expected


@given(
    st.integers(-1, 12),
    st.integers(0, 12),
    st.sampled_from(("asc", "desc")),
    st.integers(1, 9),
)
def test_windows_of_a_time_are_those_of_a_filter(
    node: Served, first: int, minutes: int, order: str, limit: int
) -> None:
    """Reading a time gives what filtering all windows gives, in both orders."""
    start, stop = NOON + first * MINUTE, NOON + (first + minutes) * MINUTE
    with node.client() as http:
        found = walk(http, f"/v1/windows?from={start}&to={stop}&order={order}", limit)
    expected = [(text(key), each) for key in KEYS for each in STARTS if start <= each < stop]
    assert found == (expected if order == "asc" else expected[::-1])


def test_every_node_has_the_windows_of_all(nodes: NodeCluster) -> None:
    """Each node answers for all partitions, in order, with the finality that the hosting node knows."""
    answers = []
    for each in nodes.nodes:
        with each.client() as http:
            assert walk(http, "/v1/windows", 5) == [(text(key), start) for key in KEYS for start in STARTS]
            some = walk(http, f"/v1/windows?from={STARTS[2]}&to={STARTS[4]}", 3)
            assert some == [(text(key), start) for key in KEYS for start in STARTS[2:4]]
            page = http.get("/v1/windows?limit=1000").json()
            one = http.get(f"/v1/windows/a/{STARTS[3]}").json()
            stream = http.get("/v1/windows", headers={"accept": "application/x-ndjson"}).text
            of_key = http.get("/v1/windows/a").json()["items"]
            answers.append((page, one, stream, of_key))
    assert answers[0] == answers[1] == answers[2]
    page, one, stream, of_key = answers[0]
    assert [json.loads(line) for line in stream.splitlines()] == page["items"]
    assert one in page["items"]
    assert of_key == [item for item in page["items"] if item["key"] == "a"]
    assert {item["window"]["final"] for item in page["items"]} == {True, False}


def test_partial_answer_names_what_is_missing(tmp_path: Path) -> None:
    """With partial=allow the windows of reachable partitions are answered, and the others are named; otherwise the read fails."""
    placement = Placement(1, APPLICATION_ID, ("",) * 2, ((0,), (1,)), ((), ()))
    with NodeCluster(tmp_path, [placement] * 2, view=VIEW) as cluster:
        fill(cluster.nodes, cluster.placement, RECORDS)
        cluster.stop(1)
        with cluster.nodes[0].client() as http:
            whole = http.get("/v1/windows?deadline-ms=1000")
            part = http.get("/v1/windows?deadline-ms=1000&partial=allow&limit=1000")

    assert (whole.status_code, whole.json()["missing"]) == (503, [1])
    assert (part.json()["complete"], part.json()["missing"]) == (False, [1])
    here = {text(key) for key in KEYS if partition_for(key, "murmur2", 2) == 0}
    assert {item["key"] for item in part.json()["items"]} == here


@pytest.mark.parametrize(
    "start", [str(STARTS[4]), "2026-11-22T12:04:00Z", "2026-11-22T13%3A04%3A00.000%2B01:00"]
)
def test_one_window(http: httpx.Client, start: str) -> None:
    """One window is read by its key and its start."""
    answer = http.get(f"/v1/windows/b/{start}")

    assert answer.status_code == 200
    assert answer.json() == next(
        item for item in http.get("/v1/windows/b").json()["items"] if shown(item) == ("b", STARTS[4])
    )
    assert answer.headers["qt-position"]
    head = http.head(f"/v1/windows/b/{start}")
    assert (head.status_code, head.content) == (200, b"")


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("", ""),
        ("a%2Fb", "a/b"),
        ("a%00", "a\0"),
        ("caf%C3%A9", "café"),
        ("_w?key-encoding=base64url", "_w"),
        ("?key-encoding=base64url", ""),
    ],
)
def test_every_key_has_its_windows(http: httpx.Client, path: str, key: str) -> None:
    """Every byte string is a key, with %2F for a slash."""
    name, mark, query = path.partition("?")
    assert walk(http, f"/v1/windows/{path}", 100) == [(key, start) for start in STARTS]
    assert shown(http.get(f"/v1/windows/{name}/{STARTS[1]}{mark}{query}").json()) == (key, STARTS[1])


@pytest.mark.parametrize("path", [f"a/{NOON + 1}", f"zzz/{NOON}", f"a/{-(1 << 63)}", f"a/{(1 << 63) - 1}"])
def test_absent_window_is_not_found(http: httpx.Client, path: str) -> None:
    """A window that no record is in is key_not_found, as of a position."""
    answer = http.get(f"/v1/windows/{path}")

    assert (answer.status_code, answer.json()["reason"]) == (404, "key_not_found")
    assert answer.json()["position"]


def test_time_within_a_window_names_its_start(http: httpx.Client) -> None:
    """A time at which no window starts is key_not_found, and the advice names the window that contains it."""
    within = http.get(f"/v1/windows/a/{STARTS[3] + 1}").json()
    assert (within["reason"], within["advice"]) == (
        "key_not_found",
        "the window that contains this time starts at 2026-11-22T12:03:00.000Z",
    )
    assert "contain" not in http.get(f"/v1/windows/zzz/{STARTS[3]}").json()["advice"]
    for far_ms in (1 << 62, -(1 << 62)):
        assert "contain" not in http.get(f"/v1/windows/a/{far_ms}").json()["advice"]


@pytest.mark.parametrize(
    ("slide", "advice"),
    [
        (
            "30s",
            "the 2 windows that contain this time start at 2026-11-22T12:00:30.000Z and 2026-11-22T12:01:00.000Z",
        ),
        (
            "1s",
            "the 60 windows that contain this time start at 2026-11-22T12:00:11.000Z to 2026-11-22T12:01:10.000Z",
        ),
    ],
)
def test_time_within_hopping_windows_names_their_starts(tmp_path: Path, slide: str, advice: str) -> None:
    """The advice names some overlapping windows, or the first and the last of many."""
    with served(tmp_path, view=view(size="1m", slide=slide)) as running, running.client() as http:
        assert http.get(f"/v1/windows/a/{NOON + 70_500}").json()["advice"] == advice


def test_time_within_a_session_names_its_start(tmp_path: Path) -> None:
    """The advice names the session of the key that contains a time, and none where there is none."""
    with served(tmp_path, partitions=1, view=view(sessionGap="1m")) as running, running.client() as http:
        running.put_slice(*(row_of(n, Record(b"a", NOON + n * 1000, n)) for n in range(12)))
        advice = [
            http.get(f"/v1/windows/{path}").json()["advice"]
            for path in (f"a/{NOON + 70_999}", f"a/{NOON + 71_000}", f"a/{NOON - 1}", f"b/{NOON + 1}")
        ]
        assert advice[0] == "the window that contains this time starts at 2026-11-22T12:00:00.000Z"
        assert not any("contains" in each for each in advice[1:])


def test_key_without_windows_has_an_empty_page(http: httpx.Client) -> None:
    """A key without windows has an empty page, and no failure."""
    assert http.get("/v1/windows/zzz").json()["items"] == []


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("?from=yesterday", "from"),
        ("?to=1.5", "to"),
        ("/a?from=2026-13-01", "from"),
        (f"?from={NOON}&to={NOON - 1}", "to"),
        ("?from=1&from=2", "from"),
        ("/a/b", "start"),
        (f"/a/b/{NOON}", "start"),
        ("/a/", "start"),
        ("?start=1", "'start'"),
        ("?limit=0", "limit"),
        ("?cursor=AAAA", "cursor"),
        (f"/a/{NOON}?route=redirect", "route"),
        (f"/a/{NOON}?partial=allow", "'partial'"),
    ],
)
def test_wrong_field_is_named(http: httpx.Client, path: str, field: str) -> None:
    """A wrong parameter is an invalid_request that names it."""
    answer = http.get(f"/v1/windows{path}")

    assert (answer.status_code, answer.json()["reason"]) == (400, "invalid_request"), answer.text
    assert answer.json()["detail"].startswith(f"{field}: ")


def test_cursor_belongs_to_its_query(http: httpx.Client) -> None:
    """A cursor of another time, key or path is refused."""
    cursor = http.get("/v1/windows/a?limit=1").json()["cursor"]

    for path in ("/v1/windows", "/v1/windows/b", f"/v1/windows/a?from={NOON}"):
        answer = http.get(path + ("&" if "?" in path else "?") + f"cursor={cursor}")
        assert (answer.status_code, answer.json()["detail"][:8]) == (400, "cursor: ")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/keys/a"),
        ("GET", "/v1/keys/a?consistency=any"),
        ("GET", "/v1/keys/"),
        ("POST", "/v1/multi-get"),
        ("GET", "/v1/scan"),
        ("GET", "/v1/range?from=a"),
        ("GET", "/v1/prefix/a"),
        ("GET", "/v1/count"),
    ],
)
def test_view_with_windows_has_no_other_reads(
    node: Served, http: httpx.Client, method: str, path: str
) -> None:
    """A read that only views without windows have is no_such_resource, and names the paths of windows."""
    answer = http.request(method, path, json={"keys": ["a"]} if method == "POST" else None)

    assert (answer.status_code, answer.json()["reason"]) == (404, "no_such_resource")
    assert "/v1/windows/{key}" in answer.json()["advice"]


def test_pipelined_plain_read_is_refused_too(node: Served) -> None:
    """A plain read, which other views answer without a task, is refused the same way."""
    for request in (
        b"GET /v1/keys/a HTTP/1.1\r\nHost: a\r\n\r\n",
        b'POST /v1/multi-get HTTP/1.1\r\nHost: a\r\nContent-Length: 14\r\n\r\n{"keys":["a"]}',
    ):
        status, _, body = parsed(exchange(node.port, request))
        assert (status, json.loads(body)["reason"]) == (404, "no_such_resource")


def test_answers_match_their_schemas(http: httpx.Client) -> None:
    """Answers have the fields that the OpenAPI document describes, which has the paths of windows and no others for rows."""
    document = http.get("/openapi.json").json()
    assert {path for path in document["paths"] if path.startswith("/v1/")} == {
        "/v1/windows", "/v1/windows/{key}", "/v1/windows/{key}/{start}", "/v1/top",
        "/v1/records", "/v1/records/{key}", "/v1/status", "/v1/placement",
    }  # fmt: skip
    for path, described in (
        ("/v1/windows?limit=1000", "/v1/windows"),
        ("/v1/windows/a", "/v1/windows/{key}"),
        (f"/v1/windows/a/{NOON}", "/v1/windows/{key}/{start}"),
        ("/v1/top?by=n", "/v1/top"),
    ):
        operation = document["paths"][described]["get"]
        schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
        Draft202012Validator(schema).validate(http.get(path).json())
        in_path = {each["name"] for each in operation["parameters"] if each["in"] == "path"}
        assert in_path == {piece.split("}")[0] for piece in described.split("{")[1:]}


@given(st.data())
def test_top_is_that_of_a_sort(nodes: NodeCluster, data: st.DataObject) -> None:
    """Any node answers the first of all windows of a time, sorted by a column; of equal ones the first key and start."""
    column = data.draw(st.sampled_from(("n", "total", "first")))
    first, minutes, k = (data.draw(st.integers(low, 12)) for low in (-1, 0, 1))
    order = data.draw(st.sampled_from(("desc", "asc")))
    bounds = f"from={NOON + first * MINUTE}&to={NOON + (first + minutes) * MINUTE}"
    with data.draw(st.sampled_from(nodes.nodes)).client() as http:
        every = http.get(f"/v1/windows?limit=1000&{bounds}").json()["items"]
        found = http.get(f"/v1/top?by={column}&k={k}&order={order}&{bounds}").json()

    expected = sorted(every, key=lambda item: item["value"][column], reverse=order == "desc")
    assert (found["items"], found["complete"]) == (expected[:k], True)


@pytest.mark.parametrize(
    ("query", "field"),
    [("", "by"), ("by=nope", "by"), ("by=n&k=0", "k"), ("by=n&k=1001", "k"), ("by=n&order=up", "order")],
)
def test_wrong_top_is_refused(http: httpx.Client, query: str, field: str) -> None:
    """A wrong parameter of top is named, and a wrong column with those that there are."""
    answer = http.get(f"/v1/top?{query}")
    assert (answer.status_code, answer.json()["detail"].partition(":")[0]) == (400, field)
