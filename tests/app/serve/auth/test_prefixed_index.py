"""Index pages, groups, counts and tops of a caller with key prefixes, against a search through its own rows."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

import httpx
import pytest

from queryable_app.serve.reads import prefixed_index
from queryable_app.wire.key_filter import RATE_MIN, decode_filter
from tests.app.serve.auth.conftest import AUTH
from tests.support.node_cluster import NodeCluster, node_cluster
from tests.support.tokens import bearer, secret_directory

Row = tuple[str, dict[str, Any]]

INDEXES: Final = [
    {"name": "by-city", "field": "city", "type": "string"},
    {"name": "by-n", "field": "n", "type": "long"},
]
CITIES: Final = ("Oslo", "Rome", "a\0b", "", "x" * 1100 + "1")
CALLERS: Final[dict[str, tuple[dict[str, Any], tuple[str, ...]]]] = {
    "one prefix": ({"scope": None, "role": "user"}, ("user/alice/",)),
    "two prefixes": ({"scope": None, "role": "user", "team": "blue-1"}, ("blue/", "user/alice/")),
    "no row": ({"scope": None, "role": "user", "sub": "eve"}, ("user/eve/",)),
}
QUERIES: Final[dict[str, Mapping[str, str]]] = {
    "all": {},
    "one value": {"eq": "3"},
    "a value that only others have": {"eq": "99"},
    "a range": {"from": "2", "to": "6"},
    "a range of one value": {"from": "3", "to": "4"},
    "an open range": {"from": "4"},
}


@pytest.fixture(scope="module", params=["one place", "scattered"])
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[NodeCluster, dict[str, dict[str, Any]]]]:
    scattered = request.param == "scattered"
    directory = tmp_path_factory.mktemp("indexes")
    started = node_cluster(
        directory,
        2,
        1,
        settings={"auth_secret_dir": secret_directory(directory / "jwt")},
        auth=AUTH,
        view={"indexes": INDEXES},
        **({"partitioner": "scatter"} if scattered else {}),
    )
    with started:
        yield started, fill(started, scattered)


def fill(cluster: NodeCluster, scattered: bool) -> dict[str, dict[str, Any]]:
    """Write rows of several callers, some twice, deleted or expired, and return those that there are."""
    rng = random.Random(7)
    rows: dict[str, dict[str, Any]] = {}
    for moment in range(1, 501):
        prefix = rng.choice(["user/alice/", "user/alicea/", "user/bob/", "blue/", "plain/"])
        key = f"{prefix}{rng.randrange(30)}"
        value: dict[str, Any] = {"city": rng.choice(CITIES), "n": rng.choice([1, 2, 3, 3, 5, 8, None])}
        if prefix == "user/bob/":
            value = {"city": "Bobtown", "n": rng.choice([3, 99, -99])}
        partition = rng.randrange(6) if scattered else None
        change = rng.random()
        expired = change < 0.1
        if change > 0.9:
            cluster.put(key.encode(), None, partition, timestamp_ms=moment)
        else:
            content = json.dumps(value).encode()
            cluster.put(key.encode(), content, partition, timestamp_ms=moment, expiry_ms=int(expired))
        rows.pop(key, None)
        if 0.1 <= change <= 0.9:
            rows[key] = value
    return rows


def own_rows(
    rows: Mapping[str, dict[str, Any]], prefixes: tuple[str, ...], query: Mapping[str, str]
) -> list[Row]:
    """Return the caller's rows that a query by `n` names, in the order of the index."""
    found = []
    for key, value in rows.items():
        n = value["n"]
        if n is None or not key.startswith(prefixes):
            continue
        if "eq" in query and n != int(query["eq"]):
            continue
        if int(query.get("from", -(10**9))) <= n < int(query.get("to", 10**9)):
            found.append((key, value))
    return sorted(found, key=lambda row: (row[1]["n"], row[0].encode()))


def pages(
    http: httpx.Client, path: str, params: Mapping[str, str], headers: Mapping[str, str]
) -> Iterator[Any]:
    """Iterate over the items of all pages."""
    cursor: dict[str, str] = {}
    while True:
        answer = http.get(path, params={**params, **cursor}, headers=headers)
        assert answer.status_code == 200, answer.text
        yield from answer.json()["items"]
        if answer.json()["cursor"] is None:
            return
        cursor = {"cursor": answer.json()["cursor"]}


@pytest.fixture
def http(cluster: tuple[NodeCluster, Any]) -> Iterator[httpx.Client]:
    with cluster[0].nodes[0].client() as client:
        yield client


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("caller", CALLERS)
def test_caller_reads_its_own_rows_of_an_index(
    cluster: tuple[NodeCluster, Any], http: httpx.Client, caller: str, query: str
) -> None:
    """Pages of any size, in both orders, a stream, counts and groups have the caller's rows in the order of the index."""
    claims, prefixes = CALLERS[caller]
    headers, named = bearer(**claims), QUERIES[query]
    expected = own_rows(cluster[1], prefixes, named)
    for limit, order in (("1", "asc"), ("3", "desc"), ("1000", "asc"), ("7", "desc")):
        params = {**named, "limit": limit, "order": order}
        found = [(item["key"], item["value"]) for item in pages(http, "/v1/index/by-n", params, headers)]
        assert found == (expected if order == "asc" else expected[::-1])
    stream = http.get("/v1/index/by-n", params=named, headers=headers | {"accept": "application/x-ndjson"})
    assert [json.loads(line)["key"] for line in stream.text.splitlines()] == [key for key, _ in expected]
    assert http.get("/v1/index/by-n/count", params=named, headers=headers).json()["count"] == len(expected)
    where = {**named, "where": "city = 'Oslo'"}
    of_oslo = [(key, value) for key, value in expected if value["city"] == "Oslo"]
    assert http.get("/v1/index/by-n/count", params=where, headers=headers).json()["count"] == len(of_oslo)
    found = [
        (item["key"], item["value"])
        for item in pages(http, "/v1/index/by-n", {**where, "limit": "2"}, headers)
    ]
    assert found == of_oslo
    if "eq" not in named:
        groups = list(pages(http, "/v1/index/by-n/groups", {**named, "limit": "2"}, headers))
        numbers = Counter(value["n"] for _, value in expected)
        assert groups == [{"value": n, "count": number} for n, number in sorted(numbers.items())]


@pytest.mark.parametrize("caller", CALLERS)
def test_caller_reads_its_own_greatest_rows(
    cluster: tuple[NodeCluster, Any], http: httpx.Client, caller: str
) -> None:
    """The rows with the greatest and the least values are those of the caller."""
    claims, prefixes = CALLERS[caller]
    expected = [key for key, _ in own_rows(cluster[1], prefixes, {})]
    for order, keys in (("desc", expected[::-1]), ("asc", expected)):
        answer = http.get(f"/v1/top?by=by-n&k=4&order={order}", headers=bearer(**claims))
        assert [item["key"] for item in answer.json()["items"]] == keys[:4]


@pytest.mark.parametrize("city", CITIES)
def test_caller_reads_its_own_rows_of_a_text(
    cluster: tuple[NodeCluster, Any], http: httpx.Client, city: str
) -> None:
    """A text with NUL, an empty one and one that is longer than an entry keeps find the caller's rows only."""
    found = pages(http, "/v1/index/by-city", {"eq": city, "limit": "2"}, bearer(**CALLERS["one prefix"][0]))
    expected = [
        key for key, value in cluster[1].items() if value["city"] == city and key.startswith("user/alice/")
    ]
    assert sorted(item["key"] for item in found) == sorted(expected)


def test_other_callers_shape_nothing(cluster: tuple[NodeCluster, Any], http: httpx.Client) -> None:
    """Texts of other callers' rows are in no answer and no cursor, and a cursor of another caller is refused."""
    headers = bearer(**CALLERS["one prefix"][0])
    whole = http.get("/v1/index/by-n?limit=1", headers=bearer()).json()["cursor"]
    bobs = http.get("/v1/index/by-n?limit=1", headers=bearer(role="user", scope=None, sub="bob")).json()[
        "cursor"
    ]
    for cursor in (whole, bobs):
        answer = http.get(f"/v1/index/by-n?limit=1&cursor={cursor}", headers=headers)
        assert (answer.status_code, answer.json()["reason"]) == (400, "invalid_request")
    for path in ("/v1/index/by-city", "/v1/index/by-city/groups", "/v1/top?by=by-city&k=1000"):
        assert "ob" not in http.get(path, headers=headers).text.replace("obj", "")


def test_too_many_own_rows_are_refused(
    cluster: tuple[NodeCluster, Any], http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read of several values by a caller with more rows than the bound is refused with a way out, which works."""
    monkeypatch.setattr(prefixed_index, "OWN_ROWS_MAX", 10)
    headers = bearer(**CALLERS["one prefix"][0])
    for path in ("/v1/index/by-n", "/v1/index/by-n/groups", "/v1/index/by-n/count", "/v1/top?by=by-n"):
        answer = http.get(path, headers=headers)
        assert (answer.status_code, answer.json()["reason"]) == (413, "too_large")
        assert "eq" in answer.json()["advice"]
    assert http.get("/v1/index/by-n?eq=3", headers=headers).status_code == 200
    assert http.get("/v1/index/by-n?from=1", headers=bearer()).status_code == 200


@pytest.mark.parametrize("caller", CALLERS)
def test_filter_knows_of_the_callers_keys(
    cluster: tuple[NodeCluster, Any], http: httpx.Client, caller: str
) -> None:
    """The filter of a caller has its own keys, and calls no key of another prefix absent."""
    claims, prefixes = CALLERS[caller]
    answer = http.get("/v1/filter", params={"rate": RATE_MIN}, headers=bearer(**claims))
    found = decode_filter(answer.content)
    own = {key for key in cluster[1] if key.startswith(prefixes)}
    assert found.keys == len(own)
    assert all(found.may_contain(key.encode()) for key in own)
    assert not found.may_contain(prefixes[0].encode() + b"missing")
    assert found.may_contain(b"user/bob/missing")
