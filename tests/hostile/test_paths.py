"""Test paths, parameters and bodies that no client of this project sends."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from queryable_app.wire.cursors import Cursor, Order
from tests.support.served import Served
from tests.support.wire import WireAnswer, request, wire

ROUTES = [
    "/v1/keys/x",
    "/v1/prefix/n",
    "/v1/records/z",
    "/v1/records",
    "/v1/multi-get",
    "/v1/range",
    "/v1/scan",
    "/v1/count",
    "/v1/status",
    "/v1/placement",
    "/internal/v1/checkpoints/0123456789abcdef/files/CURRENT",
    "/internal/v1/heartbeat",
    "/livez",
    "/openapi.json",
    "/docs",
    "/",
]


def request_to(
    node: Served, method: bytes, target: bytes, *lines: bytes, body: bytes | None = None
) -> WireAnswer:
    with wire(node.port) as connection:
        connection.send(request(method, target, *lines, body=body))
        return connection.answer(head=method == b"HEAD")


@pytest.mark.parametrize(
    "target",
    [
        b"/v1/keys%2Fx",
        b"/v1%2Fkeys/x",
        b"/v1%2fkeys%2fx",
        b"%2Fv1/keys/x",
        b"/v1/prefix%2Fn",
        b"/v1/records%2Fz",
        b"/v1%2Fcount",
        b"/internal%2Fv1/heartbeat",
    ],
)
@pytest.mark.parametrize("method", [b"GET", b"HEAD", b"DELETE"])
def test_encoded_slash_is_no_separator(node: Served, method: bytes, target: bytes) -> None:
    """A node answers 404 no_such_resource to a path whose separators are percent-encoded."""
    answer = request_to(node, method, target)
    if target.startswith(b"%"):
        assert answer.status == 400  # a target begins with a slash
    else:
        assert answer.status == 404
        assert method == b"HEAD" or answer.reason == "no_such_resource"


@st.composite
def odd_targets(draw: st.DrawFn) -> bytes:
    """Draw a route with some characters percent-encoded, doubled, left out, or replaced by any byte."""
    target = b""
    for character in draw(st.sampled_from(ROUTES)).encode():
        change = draw(
            st.sampled_from(["keep"] * 8 + ["encode", "encode twice", "double", "leave out", "any"])
        )
        target += {
            "keep": b"%c" % character,
            "encode": b"%%%02x" % character,
            "encode twice": b"%%25%02X" % character,
            "double": b"%c%c" % (character, character),
            "leave out": b"",
            "any": b"%%%02X" % draw(st.integers(0, 255)),
        }[change]
    return target + draw(st.sampled_from([b"", b"?", b"?limit=%31", b"/", b"/..", b";x", b"%", b"%zz"]))


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    target=odd_targets(), method=st.sampled_from([b"GET", b"HEAD", b"DELETE", b"POST", b"PUT", b"OPTIONS"])
)
def test_no_path_is_a_defect(node: Served, target: bytes, method: bytes) -> None:
    """Whatever a path is, a node does not answer 500."""
    body = b"{}" if method in (b"POST", b"PUT") else None
    answer = request_to(node, method, target, b"Qt-Deadline-Ms: 50", body=body)
    assert answer.status != 500, answer


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    body=st.recursive(
        st.none()
        | st.booleans()
        | st.text(st.characters(exclude_categories=()), max_size=5)
        | st.sampled_from([float("inf"), float("nan"), -0.0, 1e308, 10**400, -(2**63), 2**64]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["keys", "key", "value", "a"]), inner, max_size=3)
        ),
        max_leaves=6,
    ),
    target=st.sampled_from([b"/v1/multi-get", b"/v1/records"]),
    big=st.booleans(),
)
def test_no_body_is_a_defect(node: Served, target: bytes, body: object, big: bool) -> None:
    """Whatever JSON a body is, or almost is, a node does not answer 500."""
    raw = json.dumps(body).encode().replace(b"Infinity", b"1e400" if big else b"Infinity")
    assert (
        request_to(
            node, b"POST", target, b"Qt-Deadline-Ms: 50" if target == b"/v1/records" else b"X: y", body=raw
        ).status
        != 500
    )


def test_blanks_around_a_header_value_are_ignored(node: Served) -> None:
    """A node strips spaces and tabs around the value of a header."""
    for value in (b"any", b" \tany \t "):
        assert request_to(node, b"GET", b"/v1/keys/key-000001", b"Qt-Consistency:" + value).status == 200
    answer = request_to(node, b"POST", b"/v1/multi-get", b"Content-Encoding: identity ", body=b'{"keys":[]}')
    assert answer.status == 200


@pytest.mark.parametrize(
    "target", [b"/v1/scan", b"/v1/range", b"/v1/prefix/key", b"/v1/keys/key-000001", b"/v1/records/z"]
)
def test_unknown_key_encoding_is_refused_everywhere(node: Served, target: bytes) -> None:
    """A node refuses a key encoding that it does not know, also where the request has no key."""
    answer = request_to(node, b"DELETE" if b"records" in target else b"GET", target + b"?key-encoding=base64")
    assert (answer.status, answer.json()["detail"].split(":")[0]) == (400, "key-encoding")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-8-sig", "latin-1"])
def test_body_in_another_encoding_is_refused(node: Served, encoding: str) -> None:
    """A node refuses a body that is JSON in another encoding than UTF-8."""
    body = '{"keys":["käse"]}'.encode(encoding)
    answer = request_to(node, b"POST", b"/v1/multi-get", body=body)
    assert (answer.status, answer.json()["detail"].split(":")[0]) == (400, "body")


def forged(scope: str, key: bytes, order: Order) -> bytes:
    """Return a cursor with a valid checksum, as any client can make one."""
    return Cursor(key, order, scope).encode().encode()


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize(
    ("path", "scope", "outside"),
    [
        (b"/v1/prefix/key-0001?", f"prefix {b'key-0001'!r}", b"key-000099"),
        (b"/v1/prefix/key-0001?", f"prefix {b'key-0001'!r}", b"key-000200"),
        (b"/v1/prefix/key-0001?", f"prefix {b'key-0001'!r}", b""),
        (
            b"/v1/range?from=key-000100&to=key-000200&",
            f"range {b'key-000100'!r} {b'key-000200'!r}",
            b"key-000099",
        ),
        (
            b"/v1/range?from=key-000100&to=key-000200&",
            f"range {b'key-000100'!r} {b'key-000200'!r}",
            b"key-000200",
        ),
        (b"/v1/range?from=key-000100&", f"range {b'key-000100'!r} None", b"a"),
        (b"/v1/range?to=key-000200&", f"range None {b'key-000200'!r}", b"z"),
    ],
)
def test_cursor_outside_of_its_query_is_refused(
    node: Served, path: bytes, scope: str, outside: bytes, order: Order
) -> None:
    """A node refuses a cursor at a key outside of its query, although its checksum is valid."""
    answer = request_to(
        node, b"GET", path + b"order=%b&cursor=%b" % (order.encode(), forged(scope, outside, order))
    )
    assert (answer.status, answer.json()["detail"].split(":")[0]) == (400, "cursor")


def test_cursor_continues_inside_its_query(node: Served) -> None:
    """A cursor from a node leads to the end of its query."""
    found: list[str] = []
    cursor = b""
    while True:
        page = request_to(node, b"GET", b"/v1/prefix/key-0001?limit=7" + cursor).json()
        found += [row["key"] for row in page["items"]]
        if page["cursor"] is None:
            break
        cursor = b"&cursor=" + page["cursor"].encode()
    assert found == [f"key-{number:06}" for number in range(100, 200)]
