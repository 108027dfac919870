"""Test reads of keys over HTTP: every kind of key, form and consistency, and wrong requests."""

from __future__ import annotations

import base64
import json
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from queryable_app.platform.kafka_clients import KafkaUnavailable
from tests.support.served import Served, exchange, now_ms, parsed, served
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(
        tmp_path_factory.mktemp("keys"), partitions=3, settings={"body_bytes_max": 1_100_000}
    ) as running:
        running.put(b"a", b'{"n": 1}')
        running.put(b"gone", b"1")
        running.put(b"gone", None)
        yield running


@pytest.fixture(scope="module")
def http(node: Served) -> Iterator[httpx.Client]:
    with node.client() as client:
        yield client


def problem(answer: httpx.Response) -> dict[str, Any]:
    """Return the body of a failure, whose reason is of the closed set."""
    assert answer.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = answer.json()
    assert {"status", "reason", "title", "detail", "advice"} <= body.keys()
    assert body["status"] == answer.status_code
    return body


def test_value_is_returned_as_it_was_produced(node: Served, http: httpx.Client) -> None:
    """A node returns the stored JSON unchanged, with headers on the record and the replica."""
    answer = http.get("/v1/keys/a", headers={"qt-consistency": "bounded"})

    assert answer.content == b'{"n": 1}'
    partition = answer.headers["qt-partition"]
    replica = node.node.replicas.by_partition[int(partition)]
    headers = {
        name: answer.headers[f"qt-{name}"]
        for name in ("offset", "position", "role", "lag-records", "epoch", "hops")
    }
    assert headers == {
        "offset": "0",
        "position": f"{partition}:{replica.position}",
        "role": "active",
        "lag-records": "0",
        "epoch": "1",
        "hops": "0",
    }
    assert int(answer.headers["qt-lag-ms"]) >= 0
    assert (answer.headers["qt-served-by"], answer.headers["qt-application"]) == (
        "users-r1-0",
        "tests.users.r1",
    )


@pytest.mark.parametrize("key", ["missing", "gone"])
def test_absent_key_states_its_position(http: httpx.Client, key: str) -> None:
    """key_not_found states the position as of which a key is absent, never written or deleted alike."""
    answer = http.get(f"/v1/keys/{key}")

    body = problem(answer)
    assert (body["reason"], body["position"]) == ("key_not_found", answer.headers["qt-position"])
    assert body["partition"] == int(answer.headers["qt-partition"])


ANY_BYTES = [
    *(
        b"",
        b"ALL",
        b"COUNT",
        b"a/b",
        b"..",
        b".",
        b"%2F",
        b"?",
        b"#",
        b"a b",
        b"a+b",
        "🦊".encode(),
        b"\xff\xfe",
    ),
    *(b"processors", b"\0", b"\n", b"/", b"//", b"key", b"a%00b"),
]


@pytest.mark.parametrize("key", ANY_BYTES, ids=repr)
def test_every_byte_string_is_a_key(node: Served, http: httpx.Client, key: bytes) -> None:
    """A node finds every key, percent-encoded and as base64url."""
    value = json.dumps({"key": key.hex()}).encode()
    node.put(key, value)
    escaped = "".join(f"%{byte:02X}" for byte in key)
    encoded = base64.urlsafe_b64encode(key).decode().rstrip("=")
    assert http.get(f"/v1/keys/{escaped}").content == value
    assert http.get(f"/v1/keys/{escaped}?consistency=any").content == value
    assert http.get(f"/v1/keys/{encoded}?key-encoding=base64url").content == value


@pytest.mark.parametrize(
    "target", [b"/v1/keys/a/b", b"/v1/keys/../..", b"/v1//keys/a", b"/%76%31/keys/x%2fy", b"/v1/keys/x//"]
)
def test_path_is_not_normalised(node: Served, target: bytes) -> None:
    """Slashes and dots after /v1/keys/ are bytes of the key; elsewhere they make another path."""
    node.put(b"a/b", b"1")
    node.put(b"../..", b"2")
    node.put(b"x/y", b"3")
    node.put(b"x//", b"4")
    status, _, body = parsed(exchange(node.port, b"GET " + target + b" HTTP/1.1\r\nHost: x\r\n\r\n"))

    expected = {
        b"/v1/keys/a/b": b"1",
        b"/v1/keys/../..": b"2",
        b"/%76%31/keys/x%2fy": b"3",
        b"/v1/keys/x//": b"4",
    }
    assert (body if status == 200 else None) == expected.get(target)


def test_key_of_a_megabyte_is_read_by_multi_get(node: Served, http: httpx.Client) -> None:
    """A key is too long for a request line, and the refusal names multi-get."""
    key = b"k" * 1_000_000
    node.put(key, b"1")

    status, _, refused = parsed(exchange(node.port, b"GET /v1/keys/" + key + b" HTTP/1.1\r\nHost: x\r\n\r\n"))
    assert (status, b"multi-get" in refused) == (413, True)
    item = http.post("/v1/multi-get", json={"keys": [key.decode()]}).json()["items"][0]
    assert (item["found"], item["value"]) == (True, 1)


def test_octet_stream_is_the_stored_value(http: httpx.Client) -> None:
    """application/octet-stream returns the stored bytes, under another entity tag than JSON."""
    as_json = http.get("/v1/keys/a")
    raw = http.get("/v1/keys/a", headers={"accept": "application/octet-stream"})

    assert (raw.content, raw.headers["content-type"]) == (b'{"n": 1}', "application/octet-stream")
    assert raw.headers["etag"] != as_json.headers["etag"]


@pytest.mark.parametrize("accept", ["text/html", "application/xml;q=1", "application/json;q=0"])
def test_unsupported_media_type_is_refused(http: httpx.Client, accept: str) -> None:
    """A node refuses an Accept that it cannot answer, and names the types that it can."""
    body = problem(http.get("/v1/keys/a", headers={"accept": accept}))

    assert (body["reason"], body["detail"].startswith("Accept"), "application/octet-stream" in body["advice"]) == (
        "invalid_request", True, True)  # fmt: skip


def test_matching_entity_tag_gets_304(node: Served, http: httpx.Client) -> None:
    """If-None-Match with the tag, or with *, gets 304 without a body until the record changes."""
    node.put(b"tagged", b"1")
    first = http.get("/v1/keys/tagged")
    for given in (first.headers["etag"], "*", f'"x", W/{first.headers["etag"]}'):
        again = http.get("/v1/keys/tagged", headers={"if-none-match": given})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
    node.put(b"tagged", b"2")

    assert http.get("/v1/keys/tagged", headers={"if-none-match": first.headers["etag"]}).content == b"2"


@pytest.mark.parametrize("path", ["/v1/keys/a", "/v1/keys/missing", "/v1/scan", "/readyz"])
def test_head_is_get_without_a_body(http: httpx.Client, path: str) -> None:
    """HEAD has the status and the headers of GET."""
    got, head = http.get(path), http.head(path)

    assert (head.status_code, head.content) == (got.status_code, b"")
    assert head.headers["content-length"] == got.headers["content-length"]


@pytest.mark.parametrize(
    ("query", "named", "right"),
    [
        ("consistancy=any", "consistancy", "consistency"),
        ("limit=3", "limit", "deadline-ms"),
        ("consistency=soon", "consistency", "any"),
        ("consistency=any&consistency=any", "consistency", "once"),
        ("max-lag-ms=-1", "max-lag-ms", "0"),
        ("min-position=9:1", "min-position", "partition"),
        ("deadline-ms=0", "deadline-ms", "1"),
        ("route=elsewhere", "route", "forward"),
        ("key-encoding=hex", "key-encoding", "text"),
        ("key-encoding=base64url", "key", "A-Z"),
        ("&".join(f"x{n}=1" for n in range(200)), "query", "fewer"),
    ],
)
def test_wrong_parameter_is_named(http: httpx.Client, query: str, named: str, right: str) -> None:
    """A node names an unknown parameter with the nearest known one, and a wrong value with the allowed ones."""
    body = problem(http.get(f"/v1/keys/a!?{query}"))

    assert body["reason"] == "invalid_request"
    assert named in body["detail"].partition(":")[0]
    assert right in body["advice"]


def test_option_may_be_a_header(http: httpx.Client) -> None:
    """A `Qt-` header means what the parameter means, and a misspelt one is refused."""
    body = problem(http.get("/v1/keys/a", headers={"qt-max-lag": "1"}))
    assert (body["reason"], "Qt-max-lag-ms" in body["advice"]) == ("invalid_request", True)

    answer = http.get("/v1/keys/a", headers={"qt-min-position": "0:99999", "qt-deadline-ms": "1000"})
    assert answer.status_code in (200, 503)


def test_numeric_keys_are_read_in_their_format(tmp_path: Path) -> None:
    """An int key is a number in the path and in JSON; other text is refused."""
    with served(tmp_path, key={"format": "int"}, value={"format": "double"}) as node, node.client() as http:
        node.put(struct.pack(">i", -7), struct.pack(">d", 2.5))
        node.put(b"odd", struct.pack(">d", 1.0))

        assert http.get("/v1/keys/-7").json() == 2.5
        assert problem(http.get("/v1/keys/seven"))["detail"].startswith("key:")
        assert http.get("/v1/keys/b2Rk?key-encoding=base64url").json() == 1.0
        raw = http.get("/v1/keys/-7", headers={"accept": "application/octet-stream"})
        assert raw.content == struct.pack(">d", 2.5)
        items = http.post("/v1/multi-get", json={"keys": [-7, "-7", 8]}).json()["items"]
        assert [(i["key"], i["found"], i.get("value")) for i in items] == [
            (-7, True, 2.5),
            (-7, True, 2.5),
            (8, False, None),
        ]


# Consistency.


def test_hydrating_replica_never_answers_not_found(tmp_path: Path) -> None:
    """A bounded read is not_available; a read with any finds the rows that are there, and knows nothing of others."""
    with served(tmp_path, partitions=1, complete=False) as node, node.client() as http:
        node.put(b"a", b"1")

        assert problem(http.get("/v1/keys/a"))["reason"] == "not_available"
        assert http.get("/v1/keys/a?consistency=any").json() == 1
        unknown = http.get("/v1/keys/b?consistency=any")
        assert (problem(unknown)["reason"], unknown.headers["retry-after"]) == ("not_available", "1")
        keys = http.post("/v1/multi-get?consistency=any", json={"keys": ["a", "b"]}).json()
        assert ([i["found"] for i in keys["items"]], keys["complete"], keys["missing"]) == (
            [True, None],
            False,
            [0],
        )


def test_lag_bound_is_kept(tmp_path: Path) -> None:
    """A replica that lags more than the read allows is refused with its lag."""
    with served(tmp_path, partitions=1) as node, node.client() as http:
        node.put(b"a", b"1")
        node.on_loop(lambda: node.node.replicas.by_partition[0].note_end_offset(1, 10))

        assert problem(http.get("/v1/keys/a?max-lag-records=8"))["reason"] == "not_fresh_enough"
        assert "9 records behind" in problem(http.get("/v1/keys/a?max-lag-records=8"))["detail"]
        assert http.get("/v1/keys/a?max-lag-records=9").json() == 1
        both = http.get("/v1/keys/a?max-lag-records=8&min-position=0:1")
        assert problem(both)["reason"] == "not_fresh_enough"
        assert http.get("/v1/keys/a?max-lag-records=9&min-position=0:1").json() == 1


def test_read_waits_for_its_position(tmp_path: Path) -> None:
    """An at-least read waits until the replica has the position, and is not_fresh_enough at its deadline."""
    with served(tmp_path, partitions=1) as node, node.client() as http:
        late = http.get("/v1/keys/a?min-position=0:1&deadline-ms=1000")
        assert problem(late)["reason"] == "not_fresh_enough"

        answers: list[httpx.Response] = []
        reader = threading.Thread(
            target=lambda: answers.append(http.get("/v1/keys/a?min-position=0:1&deadline-ms=10000"))
        )
        reader.start()
        eventually("it waits", lambda: node.node.counters.in_flight == 1)
        node.put(b"a", b"1")
        reader.join(10)
        assert answers[0].json() == 1


class _LogEnd:
    """Stands in for Kafka: says where the log ends, or that Kafka is away."""

    def __init__(self, ends: dict[int, int] | None) -> None:
        self.answer = ends
        self.unavailable = None

    async def latest(self, partitions: list[int]) -> dict[int, int]:
        if self.answer is None:
            raise KafkaUnavailable("no route")
        return {p: self.answer[p] for p in partitions}


def test_strong_read_waits_for_the_end_offset(tmp_path: Path) -> None:
    """A strong read, also by the view's default, answers once the replica has the end offset, and never earlier."""
    with served(tmp_path, partitions=1, read={"consistency": "strong"}) as node, node.client() as http:
        node.put(b"a", b"1")
        node.node.end_offsets = _LogEnd({0: 1})  # type: ignore[assignment]
        assert http.get("/v1/keys/a").json() == 1
        assert node.node.counters.fast_answers == 0

        node.node.end_offsets = _LogEnd({0: 2})  # type: ignore[assignment]
        assert problem(http.get("/v1/keys/a?deadline-ms=1000"))["reason"] == "not_fresh_enough"

        node.node.end_offsets = _LogEnd(None)  # type: ignore[assignment]
        away = problem(http.get("/v1/keys/a"))
        assert (away["reason"], "no route" in away["detail"]) == ("not_fresh_enough", True)


def test_strong_read_of_an_empty_partition_answers_at_once(tmp_path: Path) -> None:
    """A replica without records has the end offset of an empty log."""
    with served(tmp_path, partitions=1, complete=False) as node, node.client() as http:
        node.on_loop(lambda: node.node.replicas.by_partition[0].note_end_offset(1, 0))
        node.node.end_offsets = _LogEnd({0: 0})  # type: ignore[assignment]

        began = time.monotonic()
        answer = http.get("/v1/keys/a?consistency=strong&deadline-ms=60000")

        assert (problem(answer)["reason"], problem(answer)["position"]) == ("key_not_found", "0:0")
        assert time.monotonic() - began < 30


# Several partitions may hold the key.


def test_newest_row_of_all_partitions_is_returned(tmp_path: Path) -> None:
    """With mixed producers the newest timestamp wins in any partition, also a tombstone's, and every position is stated."""
    with served(tmp_path, partitions=3) as node, node.client() as http:
        for partition, timestamp in ((0, 10), (1, 30), (2, 20)):
            node.put(b"a", b'"in %d"' % partition, partition=partition, timestamp_ms=timestamp)
        assert node.node.replicas.partitioning.algorithm == "scatter"

        answer = http.get("/v1/keys/a")
        assert (answer.json(), answer.headers["qt-partition"]) == ("in 1", "1")
        assert answer.headers["qt-position"] == "0:1,1:1,2:1"
        assert [i["value"] for i in http.post("/v1/multi-get", json={"keys": ["a"]}).json()["items"]] == [
            "in 1"
        ]
        assert [i["value"] for i in http.get("/v1/scan").json()["items"]] == ["in 1"]
        assert http.get("/v1/count").json()["count"] == 1

        node.put(b"a", None, partition=2, timestamp_ms=40)
        missing = http.get("/v1/keys/a")
        assert (problem(missing)["reason"], problem(missing)["position"]) == ("key_not_found", "0:1,1:1,2:2")
        assert http.post("/v1/multi-get", json={"keys": ["a"]}).json()["items"][0] == {
            "key": "a",
            "found": False,
        }
        assert http.get("/v1/scan").json()["items"] == []
        assert http.get("/v1/count").json()["count"] == 0


# Many keys at once.


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
        (b"[" * 100_000, "invalid_request", "nested"),
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


def test_expired_row_is_in_no_answer(tmp_path: Path) -> None:
    """Point reads in both lanes and forms, multi-get, scan, range, prefix, stream and count leave it out."""
    with served(tmp_path, partitions=1) as node, node.client() as http:
        node.put(b"kept", b"1", expiry_ms=now_ms() + 600_000)
        node.put(b"expired", b"2", expiry_ms=now_ms() - 1)

        for options in ({}, {"consistency": "any"}):
            assert problem(http.get("/v1/keys/expired", params=options))["reason"] == "key_not_found"
        as_bytes = http.get("/v1/keys/expired", headers={"accept": "application/octet-stream"})
        assert as_bytes.status_code == 404
        items = http.post("/v1/multi-get", json={"keys": ["expired", "kept"]}).json()["items"]
        assert [item["found"] for item in items] == [False, True]
        for path in ("/v1/scan", "/v1/scan?order=desc", "/v1/range?from=a&to=z", "/v1/prefix/"):
            assert [item["key"] for item in http.get(path).json()["items"]] == ["kept"]
            lines = http.get(path, headers={"accept": "application/x-ndjson"}).text.splitlines()
            assert [json.loads(line)["key"] for line in lines] == ["kept"]
        assert http.get("/v1/prefix/expired").json()["items"] == []
        assert http.get("/v1/count").json()["count"] == 1
