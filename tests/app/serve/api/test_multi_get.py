"""Test multi-get over HTTP: order, keys that are not text, and wrong bodies."""

from __future__ import annotations

import httpx
import pytest

from tests.app.serve.api.problems import problem
from tests.support.served import Served, exchange, parsed


def test_key_of_a_megabyte_is_read_by_multi_get(node: Served, http: httpx.Client) -> None:
    """A key is too long for a request line, and the refusal names multi-get."""
    key = b"k" * 1_000_000
    node.put(key, b"1")

    status, _, refused = parsed(exchange(node.port, b"GET /v1/keys/" + key + b" HTTP/1.1\r\nHost: x\r\n\r\n"))
    assert (status, b"multi-get" in refused) == (413, True)
    item = http.post("/v1/multi-get", json={"keys": [key.decode()]}).json()["items"][0]
    assert (item["found"], item["value"]) == (True, 1)


def test_multi_get_keeps_order_and_repeated_keys(node: Served, http: httpx.Client) -> None:
    """Multi-get returns one item for each requested key, found or not."""
    body = http.post("/v1/multi-get", json={"keys": ["missing", "a", "gone", "a"]}).json()

    assert [(i["key"], i["found"]) for i in body["items"]] == [
        ("missing", False), ("a", True), ("gone", False), ("a", True)]  # fmt: skip
    assert (body["items"][1]["value"], body["complete"], body["missing"]) == ({"n": 1}, True, [])
    assert all(
        int(node.node.replicas.by_partition[int(p)].position) == o for p, o in body["positions"].items()
    )


def test_multi_get_reads_keys_that_are_not_text(node: Served, http: httpx.Client) -> None:
    """Multi-get takes keys as base64url, and marks them in the answer where they are not text."""
    node.put(b"\xff\x01", b"1")
    body = http.post("/v1/multi-get?key-encoding=base64url", json={"keys": ["_wE", "YQ"]}).json()

    assert [(i["key"], i.get("keyEncoding"), i["found"]) for i in body["items"]] == [
        ("_wE", "base64url", True), ("a", None, True)]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "reason", "named"),
    [
        (b"", "invalid_request", "body"),
        (b'{"keys": ["a"', "invalid_request", "body"),
        (b"[" * 10_000, "invalid_request", "nested"),
        (b'{"keys": "a"}', "invalid_request", "keys"),
        (b'["a"]', "invalid_request", "keys"),
        (b'{"keys": ["a"], "key": 1}', "invalid_request", "key"),
        (b'{"keys": [{"a": 1}]}', "invalid_request", "key"),
        (b'{"keys": [null]}', "invalid_request", "key"),
        (b'{"keys": ["\\ud800"]}', "invalid_request", "surrogate"),
        (b'{"keys": ["a"], "keys": ["b"]}', "invalid_request", "twice"),
        (b'{"keys": [' + b"9" * 1001 + b"]}", "invalid_request", "1000 characters"),
        (b'{"keys": [NaN]}', "invalid_request", "NaN"),
        ('{"keys": ["a"]}'.encode("utf-16"), "invalid_request", "UTF-8"),
        (b'\xef\xbb\xbf{"keys": ["a"]}', "invalid_request", "byte order mark"),
        (b"\xff\xfe", "invalid_request", "body"),
        (b'{"keys": [' + b'"a",' * 20_000 + b'"a"]}', "too_large", "more than 10000 keys"),
        (b'{"keys": ["' + b"a" * 1_200_000 + b'"]}', "too_large", "body"),
    ],
    ids=["empty", "truncated", "deep", "no list", "a list", "unknown field", "object", "null", "surrogate",
         "twice", "digits", "NaN", "UTF-16", "byte order mark", "no UTF-8", "many keys", "large"],
)  # fmt: skip
@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
def test_wrong_body_is_refused(
    http: httpx.Client, body: bytes, reason: str, named: str, chunked: bool
) -> None:
    """A node refuses every wrong body, with a length or in chunks, and says what is wrong."""
    content = iter([body[:1000], body[1000:]]) if chunked else body
    refused = problem(http.post("/v1/multi-get", content=content))

    assert (refused["reason"], named in refused["detail"]) == (reason, True)


def test_compressed_body_is_refused(http: httpx.Client) -> None:
    """A node refuses a body with Content-Encoding."""
    answer = http.post("/v1/multi-get", content=b"x", headers={"content-encoding": "gzip"})

    assert problem(answer)["detail"].startswith("Content-Encoding")
