"""Test that every way to read an aggregated view returns the rendered aggregates."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from queryable_app.commands.get import get_command
from tests.support.node_cluster import NodeCluster, three_nodes
from tests.support.served import Served, exchange, served
from tests.support.waiting import eventually

VIEW = {
    "kind": "aggregate",
    "aggregate": {
        "columns": [
            {"name": "n", "op": "count"},
            {"name": "total", "op": "sum", "of": "amount"},
            {"name": "last name", "op": "last", "of": "name"},
        ]
    },
}
TYPES = "-ls"
KEYS = [f"key-{n:02}" for n in range(12)]


def value_of(n: int) -> dict[str, Any]:
    return {"n": 2, "total": n + 1, "last name": f"né\n{n}"}


def add_records(node: Served | NodeCluster) -> None:
    for n, key in enumerate(KEYS):
        node.contribute(key.encode(), TYPES, (2, n, b"first"))
        node.contribute(key.encode(), TYPES, (2, 1, f"né\n{n}".encode()))


EXPECTED = {key: value_of(n) for n, key in enumerate(KEYS)}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("aggregates"), partitions=3, view=VIEW) as running:
        add_records(running)
        yield running


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeCluster]:
    with three_nodes(tmp_path_factory.mktemp("aggregates"), 1, view=VIEW) as running:
        add_records(running)
        yield running


@pytest.fixture(scope="module", params=["one node", "three nodes"])
def http(request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    """Connect to a node that hosts every partition, and to one that has to read from its peers."""
    running: Any = request.getfixturevalue("node" if request.param == "one node" else "cluster")
    with (running if request.param == "one node" else running.nodes[0]).client() as client:
        yield client


@pytest.mark.parametrize("query", ["", "?consistency=any"])
def test_point_read(http: httpx.Client, query: str) -> None:
    """A read of one key returns the object, on the fast lane and beside it, again and again."""
    for _ in range(3):
        assert {key: http.get(f"/v1/keys/{key}{query}").json() for key in KEYS} == EXPECTED


def test_octet_stream_is_the_json_text(http: httpx.Client) -> None:
    """A read of the value's bytes returns the JSON text, since states are of no use to a client."""
    answer = http.get("/v1/keys/key-03", headers={"accept": "application/octet-stream"})

    assert json.loads(answer.content) == EXPECTED["key-03"]
    assert answer.headers["content-type"] == "application/octet-stream"


def test_multi_get(http: httpx.Client) -> None:
    """A read of many keys returns the objects, small or too large for the lane."""
    for keys in (KEYS, KEYS * 100):
        items = http.post("/v1/multi-get", json={"keys": [*keys, "absent"]}).json()["items"]
        assert [item.get("value") for item in items] == [EXPECTED[key] for key in keys] + [None]


def test_conditions_are_about_the_rendered_value(http: httpx.Client) -> None:
    """`where` names the columns of the view, as they are answered."""
    where = "total > 3 and (total <= 5 or \"last name\" = 'n\u00e9\n11')"
    items = http.get("/v1/scan", params={"where": where}).json()["items"]
    assert [item["key"] for item in items] == ["key-03", "key-04", "key-11"]
    assert all(item["value"] == EXPECTED[item["key"]] for item in items)
    assert http.get("/v1/count", params={"where": where}).json()["count"] == 3


@pytest.mark.parametrize("path", ["/v1/scan", "/v1/range?from=key-00&to=key-99", "/v1/prefix/key"])
def test_many_rows(http: httpx.Client, path: str) -> None:
    """A scan, a range and a prefix return the objects, as a page and as lines."""
    page = http.get(path).json()["items"]
    text = http.get(path, headers={"accept": "application/x-ndjson"}).text

    assert {item["key"]: item["value"] for item in page} == EXPECTED
    assert {item["key"]: item["value"] for item in map(json.loads, text.splitlines())} == EXPECTED


def test_command_line(node: Served) -> None:
    """`qtopic get` shows the object."""
    got = CliRunner().invoke(get_command, ["key-05", "--url", node.url])

    assert (got.exit_code, json.loads(got.stdout)) == (0, EXPECTED["key-05"])


def test_entity_tag_changes_with_each_record(node: Served) -> None:
    """A client that has the newest aggregates gets 304, until another record of the group arrives."""
    with node.client() as http:
        node.contribute(b"tagged", TYPES, (2, 1, b"a"))
        tag = http.get("/v1/keys/tagged").headers["etag"]
        unchanged = http.get("/v1/keys/tagged", headers={"if-none-match": tag})
        node.contribute(b"tagged", TYPES, (2, 1, b"a"))
        changed = http.get("/v1/keys/tagged", headers={"if-none-match": tag})

    assert (unchanged.status_code, changed.status_code, changed.json()["n"]) == (304, 200, 2)


def test_fast_lane_answers_as_the_api_does(node: Served) -> None:
    """The answer of the fast lane and that of the API have the same body."""
    request = b"GET /v1/keys/key-07%s HTTP/1.1\r\nhost: n\r\n\r\n"

    answers = [exchange(node.port, request % query) for query in (b"", b"", b"?consistency=any")]
    bodies = {answer.partition(b"\r\n\r\n")[2] for answer in answers}

    assert [json.loads(body) for body in bodies] == [EXPECTED["key-07"]]


def test_group_in_several_partitions_is_merged(tmp_path: Path) -> None:
    """If mixed producers wrote a key to several partitions, every read counts the records of all of them."""
    with three_nodes(tmp_path, 1, view=VIEW) as cluster:
        for partition in range(3):
            cluster.contribute(b"mixed", TYPES, (2, 10 + partition, b"x"), partition)
        cluster.contribute(b"mixed", TYPES, (2, 1, b"x"), 1)
        eventually("every node searches all partitions", lambda: cluster.algorithms() == {"scatter"})
        expected = {"n": 4, "total": 34, "last name": "x"}
        for node in cluster.nodes:
            with node.client() as http:
                first = http.get("/v1/keys/mixed")
                assert first.json() == expected
                assert [item["value"] for item in http.get("/v1/scan").json()["items"]] == [expected]
                items = http.post("/v1/multi-get", json={"keys": ["mixed"]}).json()["items"]
                assert [item["value"] for item in items] == [expected]
                assert http.get("/v1/count").json()["count"] == 1

        # The newest record of the key stays that of partition 1, and the aggregate changes.
        cluster.contribute(b"mixed", TYPES, (2, 1, b"x"), 0)
        with cluster.nodes[0].client() as http:
            changed = http.get("/v1/keys/mixed", headers={"if-none-match": first.headers["etag"]})
            assert (changed.status_code, changed.json()["n"]) == (200, 5)
