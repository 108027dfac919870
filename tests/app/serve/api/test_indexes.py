"""Test reads by secondary indexes over real stores and nodes, against a brute-force search."""

from __future__ import annotations

import json
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator

from queryable_app.local.resource_file import load_resource
from tests.support.node_cluster import NodeCluster, node_cluster
from tests.support.served import Served, served

INDEXES = [
    {"name": "by-user", "field": "user", "type": "string"},
    {"name": "by-views", "field": "stats.views", "type": "long"},
    {"name": "by-score", "field": "score", "type": "double"},
    {"name": "by-active", "field": "active", "type": "boolean"},
    {"name": "by-seen", "field": "seen", "type": "timestamp"},
]
USERS = ["ada", "bo", "b\0o", "", "ü", "x" * 1100 + "1", "x" * 1100 + "2"]
VALUES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "by-user": lambda value: value.get("user"),
    "by-views": lambda value: value.get("stats", {}).get("views"),
    "by-score": lambda value: value.get("score"),
    "by-active": lambda value: value.get("active"),
}


def random_value(rng: random.Random) -> dict[str, Any]:
    """Return a value in which some fields are absent, null, or of another type."""
    value: dict[str, Any] = {
        "user": rng.choice([*USERS, None, 7]),
        "stats": {"views": rng.choice([-3, 0, 1, 2, 10**12, None, "many", 2**64])},
        "score": rng.choice([-1.5, -0.0, 0, 2, 1e300, "NaN", None]),
        "active": rng.choice([True, False, None, 1]),
        "seen": rng.choice([f"2026-11-2{rng.randrange(9)}T10:00:00Z", 1_795_000_000_000, "soon"]),
    }
    return {name: field for name, field in value.items() if rng.random() < 0.9}


def fill(cluster: NodeCluster, seed: int, scattered: bool) -> dict[str, dict[str, Any]]:
    """Write records, some of which replace, delete or expire others, and return the rows that there are then."""
    rng = random.Random(seed)
    rows: dict[str, dict[str, Any]] = {}
    now_ms = time.time_ns() // 1_000_000
    for moment in range(1, 401):
        key = f"k{rng.randrange(120)}"
        partition = rng.randrange(6) if scattered else None
        change = rng.random()
        if change < 0.1:
            cluster.put(key.encode(), None, partition, timestamp_ms=moment)
            rows.pop(key, None)
            continue
        value = random_value(rng)
        expired = change < 0.2
        expiry_ms = 1 if expired else now_ms + 3_600_000 if change < 0.5 else 0
        cluster.put(
            key.encode(), json.dumps(value).encode(), partition, timestamp_ms=moment, expiry_ms=expiry_ms
        )
        if expired:
            rows.pop(key, None)
        else:
            rows[key] = value
    return rows


@pytest.fixture(scope="module", params=["one place", "scattered"])
def filled(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[NodeCluster, dict[str, dict[str, Any]]]]:
    """Run three nodes, each with some of six partitions; in one of the two runs a key is in several partitions."""
    scattered = request.param == "scattered"
    more = {"partitioner": "scatter"} if scattered else {}
    with node_cluster(tmp_path_factory.mktemp("nodes"), 3, 1, view={"indexes": INDEXES}, **more) as cluster:
        yield cluster, fill(cluster, 3, scattered)


def is_of_type(name: str, value: Any) -> bool:
    match name:
        case "by-user":
            return isinstance(value, str)
        case "by-views":
            return type(value) is int and -(2**63) <= value < 2**63
        case "by-score":
            return type(value) in (int, float)
        case _:
            return isinstance(value, bool)


def expected(
    rows: dict[str, dict[str, Any]], name: str, low: Any = None, high: Any = None, reverse: bool = False
) -> list[tuple[Any, str]]:
    """Return the indexed values of `[low, high)` with their keys, in order, from a search through all rows."""
    found = [
        (VALUES[name](value), key) for key, value in rows.items() if is_of_type(name, VALUES[name](value))
    ]
    within = [
        (value, key)
        for value, key in found
        if (low is None or value >= low) and (high is None or value < high)
    ]
    return sorted(within, key=lambda each: (rank(each[0]), each[1]), reverse=reverse)


def rank(value: Any) -> Any:
    """Return what an index orders values by: of a text longer than 1 KiB its first KiB, and then a digest."""
    if not isinstance(value, str):
        return value
    raw = value.encode()
    return raw[:1024], blake2b(raw, digest_size=16).digest() if len(raw) > 1024 else b""


def walk(http: httpx.Client, path: str, parameters: dict[str, Any], limit: int) -> list[dict[str, Any]]:
    """Return the items of all pages."""
    items: list[dict[str, Any]] = []
    cursor: dict[str, Any] = {}
    while True:
        answer = http.get(path, params={**parameters, "limit": limit, "deadline-ms": 15_000, **cursor})
        assert answer.status_code == 200, answer.text
        page = answer.json()
        assert len(page["items"]) <= limit
        items += page["items"]
        if page["cursor"] is None:
            return items
        cursor = {"cursor": page["cursor"]}


def shown(name: str, items: Sequence[dict[str, Any]]) -> list[tuple[Any, str]]:
    return [(VALUES[name](item["value"]), item["key"]) for item in items]


@pytest.mark.parametrize("name", list(VALUES))
@pytest.mark.parametrize("order", ["asc", "desc"])
def test_pages_are_the_rows_in_the_order_of_the_index(
    filled: tuple[NodeCluster, dict[str, dict[str, Any]]], name: str, order: str
) -> None:
    """Pages of any size, from any node, have each row once, in the order of values and keys, and a stream has the same."""
    cluster, rows = filled
    wanted = expected(rows, name, reverse=order == "desc")
    for node, limit in zip(cluster.nodes, (3, 17, 100), strict=True):
        with node.client() as http:
            assert shown(name, walk(http, f"/v1/index/{name}", {"order": order}, limit)) == wanted
            stream = http.get(f"/v1/index/{name}?order={order}", headers={"Accept": "application/x-ndjson"})
            assert shown(name, [json.loads(line) for line in stream.text.splitlines()]) == wanted


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("by-user", "b", "c"),
        ("by-views", -3, 2),
        ("by-views", 1, None),
        ("by-score", None, 2),
        ("by-user", "ada", "ada"),
    ],
)
def test_range_and_its_count_are_those_of_a_search(
    filled: tuple[NodeCluster, dict[str, dict[str, Any]]], name: str, low: Any, high: Any
) -> None:
    """A range has the rows from `from` up to, but not including, `to`; the count is their number."""
    cluster, rows = filled
    wanted = expected(rows, name, low, high)
    bounds = {key: value for key, value in (("from", low), ("to", high)) if value is not None}
    with cluster.nodes[1].client() as http:
        assert shown(name, walk(http, f"/v1/index/{name}", bounds, 4)) == wanted
        assert http.get(f"/v1/index/{name}/count", params=bounds).json()["count"] == len(wanted)


@pytest.mark.parametrize(
    ("name", "value"),
    [*(("by-user", user) for user in USERS), ("by-views", 0), ("by-score", 0), ("by-active", True)],
)
def test_equality_is_exact(
    filled: tuple[NodeCluster, dict[str, dict[str, Any]]], name: str, value: Any
) -> None:
    """The rows with a value are found, also of a text longer than the part that has an order."""
    cluster, rows = filled
    wanted = [each for each in expected(rows, name) if each[0] == value]
    assert wanted
    equal = {"eq": json.dumps(value) if isinstance(value, bool) else value}
    with cluster.nodes[2].client() as http:
        assert shown(name, walk(http, f"/v1/index/{name}", equal, 5)) == wanted
        assert http.get(f"/v1/index/{name}/count", params=equal).json()["count"] == len(wanted)


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_groups_are_the_values_with_their_numbers(
    filled: tuple[NodeCluster, dict[str, dict[str, Any]]], order: str
) -> None:
    """Each distinct value appears once over all nodes and pages, with its number of rows; of a long text, the beginning."""
    cluster, rows = filled
    wanted = Counter(value for value, _ in expected(rows, "by-user"))
    in_order = sorted(wanted.items(), key=lambda each: rank(each[0]), reverse=order == "desc")
    with cluster.nodes[0].client() as http:
        groups = walk(http, "/v1/index/by-user/groups", {"order": order}, 2)
        views = walk(http, "/v1/index/by-views/groups", {"from": -3, "to": 2}, 100)
    short = [(group["value"], group["count"]) for group in groups if "truncated" not in group]
    assert short == [each for each in in_order if len(each[0]) < 1000]
    long = [(group["value"], group["count"]) for group in groups if group.get("truncated")]
    assert sorted(long) == sorted(("x" * 1024, count) for value, count in in_order if len(value) > 1000)
    counted = Counter(value for value, _ in expected(rows, "by-views", -3, 2))
    assert views == [{"value": value, "count": counted[value]} for value in sorted(counted)]


def test_top_has_the_greatest_rows_of_all_nodes(
    filled: tuple[NodeCluster, dict[str, dict[str, Any]]],
) -> None:
    """The top rows by an index come from all partitions, the greatest first, or the least with order=asc."""
    cluster, rows = filled
    with cluster.nodes[0].client() as http:
        top = http.get("/v1/top?by=by-score&k=7").json()
        least = http.get("/v1/top?by=by-views&order=asc").json()
    assert shown("by-score", top["items"]) == expected(rows, "by-score", reverse=True)[:7]
    assert shown("by-views", least["items"]) == expected(rows, "by-views")[:10]
    assert top["complete"] is True


def test_conditions_apply_to_the_rows_of_an_index(
    filled: tuple[NodeCluster, dict[str, dict[str, Any]]],
) -> None:
    """`where` selects among the rows of an index, in pages, in a count and in the top."""
    cluster, rows = filled
    wanted = [each for each in expected(rows, "by-score") if rows[each[1]].get("active") is True]
    where = {"where": "active = true"}
    with cluster.nodes[0].client() as http:
        assert shown("by-score", walk(http, "/v1/index/by-score", where, 5)) == wanted
        assert http.get("/v1/index/by-score/count", params=where).json()["count"] == len(wanted)
        top = http.get("/v1/top", params={"by": "by-score", "k": 3, **where}).json()["items"]
        assert shown("by-score", top) == wanted[::-1][:3]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("one"), partitions=2, view={"indexes": INDEXES}) as running:
        running.put(b"a", b'{"user": "ada", "seen": "2026-11-22T10:00:00Z"}')
        running.put(b"b", b'{"user": 5, "seen": 1795348800001}')
        running.put(b"c", b'"no object"')
        yield running


@pytest.fixture(scope="module")
def http(node: Served) -> Iterator[httpx.Client]:
    with node.client() as client:
        yield client


def test_time_is_found_in_any_form(http: httpx.Client) -> None:
    """A timestamp index orders texts and numbers together, and a request writes a time in either form."""
    times = http.get("/v1/index/by-seen?from=2026-11-22T10:00:00Z&to=1795348800002").json()
    assert [item["key"] for item in times["items"]] == ["a", "b"]
    groups = http.get("/v1/index/by-seen/groups?limit=1").json()
    assert groups["items"] == [{"value": "2026-11-22T10:00:00.000Z", "count": 1}]


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v1/index/by-views?eq=many", "eq"),
        ("/v1/index/by-views?eq=9223372036854775808", "eq"),
        ("/v1/index/by-views?from=2&to=1", "to"),
        ("/v1/index/by-views?eq=1&from=1", "eq"),
        ("/v1/index/by-views/count?from=1.5", "from"),
        ("/v1/index/by-active?eq=1", "eq"),
        ("/v1/index/by-score?eq=NaN", "eq"),
        ("/v1/index/by-seen?eq=soon", "eq"),
        ("/v1/index/by-user?eq=%FF", "eq"),
        (f"/v1/index/by-user?from={'x' * 1025}", "from"),
        ("/v1/index/by-user?limit=0", "limit"),
        ("/v1/index/by-user?cursor=x", "cursor"),
        ("/v1/index/by-user/groups?eq=ada", "eq"),
        ("/v1/top", "by"),
        ("/v1/top?by=by-views&k=1001", "k"),
    ],
)
def test_wrong_parameter_is_named(http: httpx.Client, path: str, field: str) -> None:
    """A value of another type, an empty range and a wrong bound are refused by the name of the parameter."""
    answer = http.get(path)
    assert (answer.status_code, answer.json()["reason"]) == (400, "invalid_request")
    assert field in answer.json()["detail"]


def test_cursor_of_another_query_is_refused(http: httpx.Client) -> None:
    """A cursor goes on with the index and the bounds that it came from, and with no others."""
    cursor = http.get("/v1/index/by-seen?limit=1").json()["cursor"]
    for other in (
        "/v1/index/by-user?",
        "/v1/index/by-seen?from=1&",
        "/v1/index/by-seen/groups?",
        "/v1/scan?",
    ):
        assert http.get(f"{other}cursor={cursor}").status_code == 400


def test_long_bound_of_texts_is_refused_by_its_length(http: httpx.Client) -> None:
    """A bound of a range of texts beyond 1 KiB is refused with both lengths, since it has no order; `eq` takes any length."""
    text = "x" * 1025
    detail = http.get("/v1/index/by-user", params={"from": text}).json()["detail"]
    assert detail == "from: has 1025 bytes, and the bounds of a range have at most 1024"
    assert http.get("/v1/index/by-user", params={"eq": text}).json()["items"] == []


def test_unknown_index_is_refused_with_those_there_are(http: httpx.Client, tmp_path: Path) -> None:
    """An index that the view does not have is no resource, and the answer names those that it has."""
    for path in (
        "/v1/index/by-city",
        "/v1/index/by-city/count",
        "/v1/index/by-city/groups",
        "/v1/top?by=by-city",
    ):
        problem = http.get(path).json()
        assert (problem["status"], problem["reason"]) == (404, "no_such_resource")
        assert "by-user, by-views" in problem["advice"]
    with served(tmp_path) as plain, plain.client() as of_plain:
        assert of_plain.get("/v1/index/by-user").json()["detail"] == "this view has no indexes"
        assert of_plain.get("/v1/top?by=x").json()["detail"] == "this view has no indexes"


def test_field_of_another_type_is_counted_and_its_row_readable(http: httpx.Client) -> None:
    """A row whose field has another type is not in the index, counts in the status and the metrics, and stays readable."""
    assert [item["key"] for item in http.get("/v1/index/by-user").json()["items"]] == ["a"]
    assert http.get("/v1/keys/b").json()["user"] == 5
    counts = [each["indexes"]["by-user"] for each in http.get("/v1/status").json()["partitions"]]
    assert sum(each["entries"] for each in counts) == 1
    assert sum(each["mistyped"] for each in counts) == 2
    samples = [
        line for line in http.get("/metrics").text.splitlines() if line.startswith("qt_index_mistyped_rows{")
    ]
    assert sum(float(line.split()[-1]) for line in samples if 'index="by-user"' in line) == 2


def test_answers_fit_their_schema(http: httpx.Client) -> None:
    """Answers of all index routes are as the OpenAPI document describes them."""
    paths = http.get("/openapi.json").json()["paths"]
    for path, request in {
        "/v1/index/{name}": "/v1/index/by-user",
        "/v1/index/{name}/count": "/v1/index/by-user/count",
        "/v1/index/{name}/groups": "/v1/index/by-user/groups",
        "/v1/top": "/v1/top?by=by-user",
    }.items():
        schema = paths[path]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
        Draft202012Validator(schema).validate(http.get(request).json())


def test_index_of_an_aggregate_orders_its_groups(tmp_path: Path) -> None:
    """An index over a column of an aggregate follows the results as they change."""
    view = {
        "kind": "aggregate",
        "aggregate": {"columns": [{"name": "n", "op": "count"}]},
        "indexes": [{"name": "by-n", "field": "n", "type": "long"}],
    }
    with served(tmp_path, partitions=1, view=view) as running, running.client() as http:
        for key in (b"a", b"b", b"c", b"b", b"c", b"c"):
            running.contribute(key, "-", (1,))
        top = http.get("/v1/top?by=by-n").json()["items"]
        assert [(item["key"], item["value"]["n"]) for item in top] == [("c", 3), ("b", 2), ("a", 1)]
        assert http.get("/v1/index/by-n/groups").json()["items"] == [
            {"value": n, "count": 1} for n in (1, 2, 3)
        ]


def test_example_answers_its_requests(tmp_path: Path) -> None:
    """The example in examples/ is a valid resource, and the requests in its head find its articles."""
    file = Path(__file__).parents[4] / "examples" / "articles-by-views.yaml"
    view = load_resource(file).document["spec"]["view"]
    assert "\n#   qtopic run -f examples/articles-by-views.yaml\n" in file.read_text()
    with served(tmp_path, view=view) as running, running.client() as http:
        for number, author in enumerate(["ada", "bo", "ada"]):
            article = {
                "author": author,
                "published": f"2026-11-0{number + 1}T10:00:00Z",
                "stats": {"views": number},
            }
            running.put(b"a-%d" % number, json.dumps(article).encode())
        answers = [
            [item.get("key", item.get("count")) for item in http.get(target).json()["items"]]
            for target in re.findall(r"http://127.0.0.1:8080(\S+)'", file.read_text())
        ]
    assert answers == [["a-0", "a-2"], ["a-2", "a-1", "a-0"], ["a-2", "a-1", "a-0"], [2, 1]]
