"""What callers get over real sockets: on the node with the key, in a task, and from another node by forwarding."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any, Final
from urllib.parse import quote

import httpx
import jwt
import pytest

from tests.app.serve.auth.conftest import HERE, THERE
from tests.support.node_cluster import TOKEN
from tests.support.served import Served, exchange, parsed, read_answers
from tests.support.tokens import OTHER_SECRET, SECRET, bearer, claims, raw_token, signed, token

USER: Final[dict[str, Any]] = {"scope": None, "role": "user"}
ALL: Final = sorted([*HERE.values(), *THERE.values()])
ALICE: Final = sorted([HERE["user/alice/"], THERE["user/alice/"]])

HS256: Final = {"alg": "HS256", "typ": "JWT"}
TWICE: Final = b'{"alg":"HS256","alg":"HS256"}'
GOOD: Final = token()
HEAD, PAYLOAD, SIGNATURE = GOOD.split(".")

BAD_TOKENS: Final[dict[str, tuple[str | None, str]]] = {
    "none at all": (None, "token_missing"),
    "another scheme": ("Basic YTpi", "token_scheme"),
    "no scheme": (GOOD, "token_scheme"),
    "a word": ("Bearer word", "token_malformed"),
    "no token": ("Bearer", "token_scheme"),
    "two parts": (f"Bearer {HEAD}.{PAYLOAD}", "token_malformed"),
    "four parts": (f"Bearer {GOOD}.x", "token_malformed"),
    "an empty signature": (f"Bearer {HEAD}.{PAYLOAD}.", "token_malformed"),
    "not base64url": (f"Bearer {HEAD}.{PAYLOAD}.+/{SIGNATURE[2:]}", "token_malformed"),
    "padding": (f"Bearer {HEAD}=.{PAYLOAD}.{SIGNATURE}", "token_malformed"),
    "a token of 9 000 bytes": (f"Bearer {token(more='x' * 9000)}", "token_too_large"),
    "expired": (f"Bearer {token(exp=int(time.time()) - 60)}", "token_expired"),
    "not valid yet": (f"Bearer {token(nbf=int(time.time()) + 86_400)}", "token_not_yet_valid"),
    "no expiry": (f"Bearer {token(exp=None)}", "token_claims"),
    "another issuer": (f"Bearer {token(iss='https://other.test')}", "token_issuer"),
    "no issuer": (f"Bearer {token(iss=None)}", "token_issuer"),
    "another audience": (f"Bearer {token(aud='other')}", "token_audience"),
    "other audiences": (f"Bearer {token(aud=['other', 'more'])}", "token_audience"),
    "no audience": (f"Bearer {token(aud=None)}", "token_audience"),
    "another secret": (f"Bearer {token(OTHER_SECRET)}", "token_signature"),
    "a changed payload": (
        f"Bearer {HEAD}.{raw_token({}, claims(sub='bob')).split('.')[1]}.{SIGNATURE}",
        "token_signature",
    ),
    "a changed signature": (f"Bearer {HEAD}.{PAYLOAD}.{SIGNATURE[::-1]}", "token_"),
    "alg none": (f"Bearer {raw_token({'alg': 'none'}, claims())}", "token_algorithm"),
    "alg None": (f"Bearer {raw_token({'alg': 'None'}, claims())}", "token_algorithm"),
    "no alg": (f"Bearer {raw_token({'typ': 'JWT'}, claims())}", "token_algorithm"),
    "alg HS512": (f"Bearer {raw_token({'alg': 'HS512'}, claims())}", "token_algorithm"),
    "alg is a list": (f"Bearer {raw_token({'alg': ['HS256']}, claims())}", "token_algorithm"),
    "a key of another type": (f"Bearer {signed('RS256', None)}", "token_algorithm"),
    "a critical extension": (
        f"Bearer {raw_token(HS256 | {'crit': ['b64'], 'b64': False}, claims())}",
        "token_malformed",
    ),
    "alg twice": (f"Bearer {raw_token(TWICE, claims())}", "token_malformed"),
    "a header that is a list": (f"Bearer {raw_token([], claims())}", "token_malformed"),
    "a header that is deep": (f"Bearer {raw_token(b'[' * 1500, claims())}", "token_malformed"),
    "a key id that is a number": (f"Bearer {raw_token(HS256 | {'kid': 1}, claims())}", "token_malformed"),
}


@pytest.fixture(scope="module")
def http(nodes: list[Served]) -> Iterator[httpx.Client]:
    """Return a client of the first node."""
    with nodes[0].client() as client:
        yield client


def refused(nodes: list[Served], reason: str) -> int:
    return sum(
        count
        for node in nodes
        for name, count in node.node.audit.refused_by_reason.items()
        if name.startswith(reason)
    )


@pytest.mark.parametrize("path", [f"/v1/keys/{HERE['plain']}", f"/v1/keys/{THERE['plain']}", "/v1/scan"])
@pytest.mark.parametrize("case", BAD_TOKENS)
def test_bad_token_is_refused(nodes: list[Served], http: httpx.Client, case: str, path: str) -> None:
    """A request whose token is not good gets 401 with a challenge, and the refusal is counted by its reason."""
    authorization, reason = BAD_TOKENS[case]
    before = refused(nodes, reason)
    answer = http.get(path, headers={} if authorization is None else {"authorization": authorization})
    assert (answer.status_code, answer.json()["reason"]) == (401, "unauthenticated")
    challenge = answer.headers["www-authenticate"]
    assert challenge.startswith("Bearer ")
    assert ('error="invalid_token"' in challenge) == (authorization is not None)
    assert refused(nodes, reason) == before + 1


@pytest.mark.parametrize("query", ["", "?consistency=any"])
@pytest.mark.parametrize("case", BAD_TOKENS)
def test_bad_token_is_refused_at_the_forwarded_hop(nodes: list[Served], case: str, query: str) -> None:
    """The node that a read is forwarded to refuses a bad token by itself."""
    authorization = BAD_TOKENS[case][0]
    line = "" if authorization is None else f"authorization: {authorization}\r\n"
    marks = f"qt-forwarded: {TOKEN}\r\nqt-deadline-ms: 5000\r\n"
    request = f"GET /v1/keys/{THERE['plain']}{query} HTTP/1.1\r\nHost: x\r\n{marks}{line}\r\n"
    assert parsed(exchange(nodes[1].port, request.encode()))[0] == 401


@pytest.mark.parametrize("query", ["", "?consistency=any", "?max-lag-ms=60000"])
@pytest.mark.parametrize("key", [HERE["plain"], THERE["plain"]])
def test_good_token_reads(http: httpx.Client, key: str, query: str) -> None:
    """A read with a good token gets the value: in the fast lane, in a task, and from the other node."""
    for _ in range(3):
        answer = http.get(f"/v1/keys/{key}{query}", headers=bearer())
        assert (answer.status_code, answer.headers["qt-hops"]) == (200, "0" if key in HERE.values() else "1")


GOOD_CLAIMS: Final[dict[str, Callable[[], dict[str, Any]]]] = {
    "expired within the skew": lambda: {"exp": int(time.time()) - 5},
    "not valid yet within the skew": lambda: {"nbf": int(time.time()) + 15},
    "several audiences": lambda: {"aud": ["other", "users-view"]},
    "a time with a fraction": lambda: {"exp": time.time() + 600.5},
    "a list of scopes": lambda: {"scope": ["write", "read"]},
    "a long token": lambda: {"more": "x" * 4000},
}


@pytest.mark.parametrize("case", GOOD_CLAIMS)
def test_good_tokens(http: httpx.Client, case: str) -> None:
    """The skew of clocks, several audiences, times with fractions, lists of scopes and long tokens are accepted."""
    headers = bearer(**GOOD_CLAIMS[case]())
    assert http.get(f"/v1/keys/{THERE['plain']}", headers=headers).status_code == 200


OPERATIONS: Final = [
    ("GET", f"/v1/keys/{HERE['plain']}", "read", None),
    ("GET", f"/v1/keys/{THERE['plain']}", "read", None),
    ("GET", f"/v1/keys/{THERE['plain']}?consistency=any", "read", None),
    ("HEAD", f"/v1/keys/{HERE['plain']}", "read", None),
    ("POST", "/v1/multi-get", "read", {"keys": ALL}),
    ("GET", "/v1/scan", "scan", None),
    ("GET", "/v1/range?from=a", "scan", None),
    ("GET", "/v1/prefix/p", "scan", None),
    ("GET", "/v1/count", "scan", None),
    ("GET", "/v1/filter", "scan", None),
    ("GET", "/v1/index/by-n", "scan", None),
    ("GET", "/v1/index/by-n/groups", "scan", None),
    ("GET", "/v1/index/by-n/count", "scan", None),
    ("GET", "/v1/top?by=by-n", "scan", None),
    ("GET", "/v1/changes?from=start&wait-ms=0", "changes", None),
    ("GET", "/v1/status", "admin", None),
    ("GET", "/metrics", "admin", None),
    ("GET", "/", "admin", None),
    ("GET", "/docs", "admin", None),
    ("GET", "/openapi.json", "admin", None),
]


@pytest.mark.parametrize(("method", "path", "operation", "body"), OPERATIONS)
def test_each_operation_needs_its_rule(
    http: httpx.Client, method: str, path: str, operation: str, body: Any
) -> None:
    """A request is answered if a rule allows its operation, and gets 403 that names the operation otherwise."""
    accept = {"accept": "application/x-ndjson"} if "/changes" in path else {}
    content = None if body is None else json.dumps(body).encode()
    allowed = http.request(method, path, headers=bearer(scope=operation) | accept, content=content)
    assert allowed.status_code == 200
    others = " ".join({"read", "scan", "write", "changes", "admin"} - {operation})
    denied = http.request(method, path, headers=bearer(scope=others) | accept, content=content)
    assert denied.status_code == 403
    assert 'error="insufficient_scope"' in denied.headers["www-authenticate"]
    if method != "HEAD":
        assert operation in denied.json()["detail"]


def test_write_needs_its_rule(http: httpx.Client) -> None:
    """A write and a delete without the rule get 403, before Kafka is asked."""
    record = {"key": "a", "value": {"n": 1}}
    headers = bearer(scope="read scan changes admin")
    assert http.post("/v1/records", headers=headers, json=record).status_code == 403
    assert http.delete("/v1/records/a", headers=headers).status_code == 403


def test_token_that_no_rule_applies_to_is_refused_everything(http: httpx.Client) -> None:
    """A valid token without a rule gets 403 everywhere, also for the placement."""
    for path in ("/v1/placement", "/v1/scan", f"/v1/keys/{HERE['plain']}", f"/v1/keys/{THERE['plain']}"):
        assert http.get(path, headers=bearer(scope="nothing")).status_code == 403
    assert http.get("/v1/placement", headers=bearer(scope="read")).status_code == 200


def test_probes_are_open(http: httpx.Client) -> None:
    """The probes need no token."""
    assert http.get("/livez").status_code == 200
    assert http.get("/readyz").status_code in (200, 503)


# A caller with a prefix.


@pytest.mark.parametrize("query", ["", "?consistency=any"])
@pytest.mark.parametrize("keys", [HERE, THERE], ids=["here", "there"])
def test_caller_reads_its_own_keys_only(http: httpx.Client, keys: dict[str, str], query: str) -> None:
    """A key of the caller's prefix is read, and any other gets 403, however it is written."""
    headers = bearer(**USER)
    own, other = keys["user/alice/"], keys["user/bob/"]
    for _ in range(2):
        assert http.get(f"/v1/keys/{own}{query}", headers=headers).status_code == 200
        assert http.get(f"/v1/keys/{quote(own, safe='')}{query}", headers=headers).status_code == 200
        assert http.get(f"/v1/keys/{other}{query}", headers=headers).status_code == 403
        assert http.get(f"/v1/keys/{quote(other, safe='')}{query}", headers=headers).status_code == 403
    assert http.get("/v1/keys/user%2Fbob%2F1", headers=headers).status_code == 403
    assert http.get("/v1/keys/dXNlci9ib2IvMA?key-encoding=base64url", headers=headers).status_code == 403
    assert http.get("/v1/keys/user/alice/missing", headers=headers).status_code == 404
    assert http.get("/v1/keys/user/bob/missing", headers=headers).status_code == 403


def test_dots_and_slashes_do_not_leave_a_prefix(nodes: list[Served]) -> None:
    """A path with dots is a key of that text, and no way to another key."""
    own = f"GET /v1/keys/user/alice/../bob/1 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token(**USER)}\r\n\r\n"
    status, _, body = parsed(exchange(nodes[0].port, own.encode()))
    assert status in (404, 503)
    assert b"bob" not in body or status == 404
    other = own.replace("alice/../bob", "./alice")
    assert parsed(exchange(nodes[0].port, other.encode()))[0] == 403


@pytest.mark.parametrize(
    "sub",
    ["", "a/b", "alice/..", "../bob", "bob/", "/", "bob\x00", None, 7.5, True, ["bob"], {"a": 1}],
    ids=repr,
)
def test_subject_cannot_widen_a_prefix(http: httpx.Client, sub: Any) -> None:
    """A subject that is empty, no text, or has the separator gets no prefix at all."""
    headers = {"authorization": f"Bearer {jwt.encode(claims(**USER) | {'sub': sub}, SECRET, 'HS256')}"}
    assert http.get("/v1/scan", headers=headers).status_code == 403
    assert http.get(f"/v1/keys/{HERE['user/bob/']}", headers=headers).status_code == 403


def keys_in(answer: httpx.Response) -> list[str]:
    return [item["key"] for item in answer.json()["items"]]


@pytest.mark.parametrize(
    "path",
    [
        "/v1/scan",
        "/v1/scan?order=desc",
        "/v1/range",
        "/v1/range?from=a&to=z",
        "/v1/range?from=user/alice/",
        "/v1/range?to=user0",
        "/v1/prefix/",
        "/v1/prefix/user",
        "/v1/prefix/user/alice/",
    ],
)
def test_scan_shows_the_callers_prefix(http: httpx.Client, path: str) -> None:
    """Scans, ranges and prefixes of a caller have the keys of its prefix, and no others."""
    assert sorted(keys_in(http.get(path, headers=bearer(**USER)))) == ALICE


@pytest.mark.parametrize(
    "path", ["/v1/prefix/user/bob/", "/v1/range?from=user/bob/", "/v1/range?to=user/alice/", "/v1/prefix/x"]
)
def test_range_of_another_prefix_is_empty(http: httpx.Client, path: str) -> None:
    """A range beside the caller's prefix has no rows."""
    assert keys_in(http.get(path, headers=bearer(**USER))) == []


def test_stream_shows_the_callers_prefix(http: httpx.Client) -> None:
    """A stream of rows has the keys of the caller's prefix."""
    answer = http.get("/v1/scan", headers=bearer(**USER) | {"accept": "application/x-ndjson"})
    assert [json.loads(line)["key"] for line in answer.text.splitlines() if '"key"' in line] == ALICE


def test_count_is_of_the_callers_prefix(http: httpx.Client) -> None:
    """A count of a caller with a prefix is exact and of that prefix; an estimate of all keys is refused."""
    assert http.get("/v1/count", headers=bearer(**USER)).json()["count"] == 2
    assert http.get("/v1/count", headers=bearer()).json()["count"] == len(ALL)
    assert http.get("/v1/count?approximate=true", headers=bearer(**USER)).status_code == 400
    assert http.get("/v1/count?where=n >= 10", headers=bearer(**USER)).json()["count"] == 1


def test_cursor_of_another_caller_is_refused(http: httpx.Client) -> None:
    """A cursor belongs to the prefix of its caller."""
    whole = http.get("/v1/scan?limit=1", headers=bearer()).json()["cursor"]
    bobs = http.get("/v1/scan?limit=1", headers=bearer(sub="bob", **USER)).json()["cursor"]
    alices = http.get("/v1/scan?limit=1", headers=bearer(**USER)).json()["cursor"]
    for cursor in (whole, bobs):
        answer = http.get(f"/v1/scan?limit=1&cursor={cursor}", headers=bearer(**USER))
        assert (answer.status_code, answer.json()["reason"]) == (400, "invalid_request")
    last = http.get(f"/v1/scan?limit=1&cursor={alices}", headers=bearer(**USER))
    assert keys_in(last) == ALICE[1:]
    assert http.get(f"/v1/scan?limit=1&cursor={alices}", headers=bearer()).status_code == 400


def test_multi_get_with_a_foreign_key_is_refused(http: httpx.Client) -> None:
    """A multi-get is refused as a whole if one of its keys is not the caller's."""
    headers = bearer(**USER)
    assert http.post("/v1/multi-get", headers=headers, json={"keys": ALICE}).status_code == 200
    answer = http.post("/v1/multi-get", headers=headers, json={"keys": [*ALICE, HERE["user/bob/"]]})
    assert answer.status_code == 403
    assert "bob" not in answer.text


def test_feed_shows_the_callers_prefix(http: httpx.Client) -> None:
    """The change feed of a caller has the changes of its prefix, also with the position of another caller."""
    headers = bearer(**USER) | {"accept": "application/x-ndjson"}
    answer = http.get("/v1/changes?from=start&wait-ms=0", headers=headers)
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert sorted(line["key"] for line in lines if "key" in line) == ALICE
    foreign = http.get("/v1/changes?from=start&wait-ms=0&prefix=user/bob/", headers=headers)
    assert not [line for line in foreign.text.splitlines() if '"key"' in line]


def test_several_prefixes(http: httpx.Client) -> None:
    """A caller with two prefixes reads the keys of both, and names the one that it scans."""
    headers = bearer(team="blue-1", **USER)
    assert http.get(f"/v1/keys/{HERE['blue/']}", headers=headers).status_code == 200
    assert http.get(f"/v1/keys/{THERE['user/alice/']}", headers=headers).status_code == 200
    assert http.get("/v1/scan", headers=headers).status_code == 403
    assert sorted(keys_in(http.get("/v1/prefix/blue/", headers=headers))) == sorted(
        [HERE["blue/"], THERE["blue/"]]
    )
    assert sorted(keys_in(http.get("/v1/range?from=user", headers=headers))) == ALICE


def test_write_outside_the_prefix_is_refused(http: httpx.Client) -> None:
    """A write of a key beyond the caller's prefix is refused, alone, in an array and as a delete."""
    headers = bearer(**USER)
    foreign, own = ({"key": key, "value": {"n": 1}} for key in (HERE["user/bob/"], HERE["user/alice/"]))
    assert http.post("/v1/records", headers=headers, json=foreign).status_code == 403
    assert http.post("/v1/records", headers=headers, json=[own, foreign]).status_code == 403
    assert http.delete(f"/v1/records/{HERE['user/bob/']}", headers=headers).status_code == 403


# A client that tries to pass for a node.


@pytest.mark.parametrize("lines", ["", f"qt-node: {TOKEN[:-1]}\r\n", "qt-node: \r\n", "qt-forwarded: x\r\n"])
def test_internal_paths_take_nodes_only(nodes: list[Served], lines: str) -> None:
    """A client's token opens no internal path, whatever headers are beside it."""
    for path in ("/internal/v1/heartbeat", "/internal/v1/placement"):
        request = f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {GOOD}\r\n{lines}\r\n"
        assert parsed(exchange(nodes[0].port, request.encode()))[0] in (401, 403)


@pytest.mark.parametrize("mark", ["x", TOKEN, f"{TOKEN}x"])
def test_marks_of_a_forwarded_read_open_nothing(nodes: list[Served], mark: str) -> None:
    """A read with the mark of a forwarded read needs a caller's token, also if the mark is right."""
    key = HERE["plain"]
    head = f"GET /v1/keys/{key} HTTP/1.1\r\nHost: x\r\nqt-forwarded: {mark}\r\nqt-deadline-ms: 1000\r\n"
    assert parsed(exchange(nodes[0].port, f"{head}\r\n".encode()))[0] == 401
    foreign = f"{head}authorization: Bearer {token(**USER)}\r\n\r\n"
    assert parsed(exchange(nodes[0].port, foreign.encode()))[0] == 403


def test_forwarded_read_is_checked_at_the_second_node(nodes: list[Served]) -> None:
    """The second node refuses the key of another prefix by itself, in a batch with allowed ones, in order."""
    own, other = THERE["user/alice/"], THERE["user/bob/"]
    tail = f" HTTP/1.1\r\nHost: x\r\nqt-forwarded: {TOKEN}\r\nqt-deadline-ms: 1000\r\n"
    mine = f"{tail}authorization: Bearer {token(**USER)}\r\n\r\n"
    batch = "".join(f"GET /v1/keys/{key}{mine}" for key in (own, other, own))
    with_all = f"{batch}GET /v1/keys/{other}{tail}authorization: Bearer {GOOD}\r\n\r\n"
    answers = read_all(nodes[1].port, with_all.encode(), 4)
    assert [parsed(answer)[0] for answer in answers] == [200, 403, 200, 200]


def read_all(port: int, data: bytes, count: int) -> list[bytes]:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(data)
        received = read_answers(connection, count)
    starts = [at for at in range(len(received)) if received.startswith(b"HTTP/1.1 ", at)]
    return [received[start:end] for start, end in zip(starts, [*starts[1:], None], strict=True)]


def test_node_token_reads_information_of_a_node(http: httpx.Client) -> None:
    """The operator and other nodes read the status with the nodes' token; it reads no keys."""
    assert http.get("/v1/status", headers={"qt-node": TOKEN}).status_code == 200
    assert http.get(f"/v1/keys/{HERE['plain']}", headers={"qt-node": TOKEN}).status_code == 401
    assert http.get("/v1/scan", headers={"qt-node": TOKEN}).status_code == 401


def test_redirect_is_checked_first(http: httpx.Client) -> None:
    """A redirect needs the same rights as the read, and the other node checks the token again."""
    path = f"/v1/keys/{THERE['user/bob/']}?route=redirect"
    assert http.get(path, headers=bearer(**USER)).status_code == 403
    answer = http.get(path, headers=bearer())
    assert answer.status_code == 307
    with httpx.Client(verify=False) as other:
        assert other.get(answer.headers["location"]).status_code == 401


def test_two_authorization_headers_are_refused(nodes: list[Served]) -> None:
    """A request with two tokens is refused, whichever comes first."""
    line = f"Authorization: Bearer {GOOD}\r\n"
    bad = "Authorization: Bearer x\r\n"
    for lines in (line + line, line + bad, bad + line):
        request = f"GET /v1/keys/{HERE['plain']} HTTP/1.1\r\nHost: x\r\n{lines}\r\n"
        assert parsed(exchange(nodes[0].port, request.encode()))[0] == 401
