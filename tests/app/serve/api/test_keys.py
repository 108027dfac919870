"""Test point reads over HTTP: every kind of key, form and entity tag, and wrong requests."""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path

import httpx
import pytest

from tests.app.serve.api.problems import problem
from tests.support.served import Served, exchange, now_ms, parsed, served


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
