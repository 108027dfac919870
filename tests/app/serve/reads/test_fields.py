"""Reads that name fields, and probes: what they answer, at the node that hosts a key and at one that forwards the read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.node_cluster import NodeCluster, three_nodes

VALUE = b'{"n": 1.50,\n "big": 9007199254740993, "inner": {"a": "x", "b": [1,\r2]}, "other": null}'
KEYS = [f"key-{n}" for n in range(6)]
NDJSON = {"accept": "application/x-ndjson"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeCluster]:
    with three_nodes(tmp_path_factory.mktemp("fields"), 1) as started:
        for key in KEYS:
            started.put(key.encode(), VALUE)
        started.put(b"text", b'"no object"')
        yield started


@pytest.fixture(scope="module")
def http(cluster: NodeCluster) -> Iterator[httpx.Client]:
    """Connect to a node, which hosts some of the keys."""
    with cluster.nodes[0].client() as client:
        yield client


@pytest.mark.parametrize("path", ["/v1/scan", "/v1/range?from=key-0", "/v1/prefix/key"])
def test_rows_have_the_named_fields(http: httpx.Client, path: str) -> None:
    """Pages and streams have the fields of each value as they are stored, each row of a stream on one line."""
    fields = {"fields": 'big,inner.b,"absent"'}
    items = http.get(path, params=httpx.URL(path).params.merge(fields)).text
    assert items.count('"value":{"big":9007199254740993,"inner":{"b":[1,\r2]}}') == len(KEYS)
    lines = http.get(path, params=httpx.URL(path).params.merge(fields), headers=NDJSON).content.split(b"\n")
    assert sum(b'"value":{"big":9007199254740993,"inner":{"b":[1, 2]}}' in line for line in lines) == len(
        KEYS
    )


def test_fields_and_conditions_go_together(http: httpx.Client) -> None:
    """The conditions are about all of the value, also about fields that are not returned."""
    page = http.get("/v1/scan", params={"where": "inner.a = 'x'", "fields": "n", "limit": 2}).json()
    assert [item["value"] for item in page["items"]] == [{"n": 1.5}] * 2
    others = {"where": "inner.a = 'x'", "fields": "other", "cursor": page["cursor"]}
    assert [item["value"] for item in http.get("/v1/scan", params=others).json()["items"]] == [
        {"other": None}
    ] * 4


def test_point_reads_and_multi_gets_have_the_named_fields(http: httpx.Client) -> None:
    """A key is read with fields wherever it is hosted. A value that is no object has none."""
    for key in KEYS:
        answer = http.get(f"/v1/keys/{key}", params={"fields": "n"})
        assert (answer.content, answer.headers["content-type"]) == (b'{"n":1.50}', "application/json")
        assert answer.headers["qt-partition"] == http.get(f"/v1/keys/{key}").headers["qt-partition"]
    assert http.get("/v1/keys/text", params={"fields": "n"}).content == b"{}"
    assert http.get("/v1/keys/absent", params={"fields": "n"}).json()["reason"] == "key_not_found"
    body = {"keys": [*KEYS, "text", "absent"]}
    items = http.post("/v1/multi-get", params={"fields": "n"}, json=body).json()["items"]
    assert [item.get("value") for item in items] == [{"n": 1.5}] * len(KEYS) + [{}, None]


def test_fields_are_another_entity(http: httpx.Client) -> None:
    """A value and each choice of its fields have different tags, and If-None-Match compares the right one."""
    for key in KEYS:
        path = f"/v1/keys/{key}"
        tags = {
            fields: http.get(path, params={"fields": fields} if fields else {}).headers["etag"]
            for fields in ("", "n", "big")
        }
        assert len(set(tags.values())) == 3
        for fields, tag in tags.items():
            answer = http.get(path, params={"fields": "n"}, headers={"if-none-match": tag})
            assert answer.status_code == (304 if fields == "n" else 200)
            assert answer.headers["etag"] == tags["n"]


@pytest.mark.parametrize(
    ("path", "headers", "detail"),
    [
        ("/v1/keys/a?fields=n,", {}, "fields: at character 3: a field is expected, not the end"),
        ("/v1/scan?fields=", {}, "fields: at character 1: a field is expected, not the end"),
        ("/v1/keys/a?fields=n&probe=true", {}, "fields: a probe answers no value"),
        ("/v1/keys/a?probe=1", {}, "probe: '1' is not one of false, true"),
        (
            "/v1/keys/a?fields=n",
            {"accept": "application/octet-stream"},
            "Accept: 'application/octet-stream' is not available here",
        ),
    ],
)
def test_mistakes_are_named(http: httpx.Client, path: str, headers: dict[str, str], detail: str) -> None:
    """A mistake is 400 and names the parameter."""
    answer = http.get(path, headers=headers)
    assert (answer.status_code, answer.json()["detail"]) == (400, detail)


def test_probe_answers_without_the_value(http: httpx.Client) -> None:
    """A probe says of every key, wherever it is hosted, what a read says, in its headers."""
    for key in KEYS:
        value, probe = http.get(f"/v1/keys/{key}"), http.get(f"/v1/keys/{key}", params={"probe": "true"})
        assert (probe.status_code, probe.content) == (200, b"")
        assert of_record(probe) == of_record(value)
    for key in ("absent", "absent-2", "absent-3"):
        assert http.get(f"/v1/keys/{key}", params={"probe": "true"}).json()["reason"] == "key_not_found"


def test_probe_of_an_unchanged_key_is_not_modified(http: httpx.Client) -> None:
    """A probe has the tag of the value, so it also tells whether the key has changed."""
    tag = http.get("/v1/keys/key-1").headers["etag"]
    answer = http.get("/v1/keys/key-1", params={"probe": "true"}, headers={"if-none-match": tag})
    assert answer.status_code == 304


def of_record(answer: httpx.Response) -> dict[str, Any]:
    return {name: answer.headers[name] for name in ("etag", "qt-partition", "qt-offset", "qt-timestamp")}


def test_stream_with_fields_is_json(http: httpx.Client) -> None:
    """Every line of a stream is one object."""
    lines = http.get("/v1/scan", params={"fields": "inner"}, headers=NDJSON).text.splitlines()
    assert [json.loads(line)["value"].keys() for line in lines] == [{"inner"}] * len(KEYS) + [set()]
