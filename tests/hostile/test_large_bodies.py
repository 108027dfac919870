"""Test bodies that are larger, or more, than a node accepts."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.serve_process import serve_process
from tests.support.served import Served, served
from tests.support.waiting import eventually
from tests.support.wire import request, wire

MIB = 1 << 20
BODY_BYTES_MAX = 2 * MIB
PATIENT = b"/v1/multi-get?consistency=any&deadline-ms=60000"
BODY = b'{"keys":["%b%b"]}' % ("\U0001f600".encode(), b"k" * (BODY_BYTES_MAX - 20))
"""A body as large as a node accepts. One character makes Python's text of it four times as large."""


def test_memory_is_released_after_a_burst_of_large_bodies(tmp_path: Path) -> None:
    """Eighty multi-gets of 2 MiB at once take no more than their budget and one parse, and soon leave nothing."""
    with serve_process(tmp_path) as node:
        before = node.memory_bytes()
        statuses: Counter[int] = Counter()

        def send_body() -> None:
            with wire(node.port, timeout=120) as connection:
                connection.send(request(b"POST", PATIENT, body=BODY))
                statuses[connection.answer().status] += 1

        clients = [threading.Thread(target=send_body) for _ in range(80)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()

        assert statuses.keys() <= {200, 429}
        assert (statuses[200] > 30, statuses.total()) == (True, 80)
        assert node.memory_bytes("VmHWM") - before < 140 * MIB
        eventually("memory is back", lambda: node.memory_bytes() - before < 80 * MIB)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Served]:
    """Yield a node that accepts bodies of 200 000 bytes, and 300 000 bytes of them at once."""
    bounds = {"body_bytes_max": 200_000, "bodies_bytes_max": 300_000}
    with served(tmp_path / "node", settings=bounds) as running:
        running.put(b"a", b"1")
        yield running


def padded(size: int) -> bytes:
    """Return a valid multi-get of this many bytes."""
    return b'{"keys":["a"]' + b" " * (size - 14) + b"}"


def head(length: int) -> bytes:
    return b"POST /v1/multi-get HTTP/1.1\r\nHost: node\r\nContent-Length: %d\r\n\r\n" % length


def test_too_large_body_is_refused_at_its_head(small: Served) -> None:
    """A node answers 413 when it knows the length, and reads nothing of the body."""
    with wire(small.port) as connection:
        connection.send(head(200_001))
        (answer,) = connection.answers()

    assert (answer.status, answer.reason, answer.headers["connection"]) == (413, "too_large", "close")


def test_chunked_body_has_the_same_limit(small: Served) -> None:
    """A node answers 413 as soon as the chunks exceed the limit of a body."""
    with wire(small.port) as connection:
        connection.send(request(b"POST", b"/v1/multi-get", b"Transfer-Encoding: chunked"))
        connection.send(*(b"4000\r\n" + b" " * 0x4000 + b"\r\n" for _ in range(13)))
        answer = connection.answer()

    assert (answer.status, answer.reason, answer.headers["connection"]) == (413, "too_large", "close")


def test_body_beyond_the_budget_is_refused_at_its_head(small: Served) -> None:
    """While one body has reserved the budget, another gets 429 before it is sent; small ones are answered."""
    with wire(small.port) as slow, wire(small.port) as other, wire(small.port) as little:
        slow.send(head(200_000))
        eventually("the first is known", lambda: small.node.body_budget.taken == 200_000)

        other.send(head(200_000))
        began = time.monotonic()
        refused = other.answer()
        assert (refused.status, refused.reason, refused.headers["retry-after"]) == (429, "overloaded", "1")
        assert time.monotonic() - began < 5
        little.send(request(b"POST", b"/v1/multi-get", body=padded(60_000)))
        assert little.answer().json()["items"][0]["value"] == 1

        other.send(padded(200_000), request(b"GET", b"/v1/keys/a"))
        assert other.answer().json() == 1  # the connection of the refused request goes on behind its body
        slow.send(padded(200_000))
        assert slow.answer().json()["items"][0]["value"] == 1
    eventually("all is given back", lambda: small.node.body_budget.taken == 0)


def test_chunked_body_reserves_what_has_arrived(small: Served) -> None:
    """Chunks beyond the budget get 429, and the connection ends."""
    with wire(small.port) as slow, wire(small.port) as chunked:
        slow.send(head(200_000))
        eventually("the first is known", lambda: small.node.body_budget.taken == 200_000)
        chunked.send(request(b"POST", b"/v1/multi-get", b"Transfer-Encoding: chunked"))
        chunked.send(*(b"4000\r\n" + b" " * 0x4000 + b"\r\n" for _ in range(7)))
        refused = chunked.answer()

    assert (refused.status, refused.reason) == (429, "overloaded")
    eventually("all is given back", lambda: small.node.body_budget.taken == 0)


def test_disconnected_client_releases_its_reservation(small: Served) -> None:
    """The budget is free again when a client disconnects in the middle of a body, or before admission."""
    for sent in (b"", b"{"):
        with wire(small.port) as disconnected:
            disconnected.send(head(200_000) + sent)
            eventually("it is known", lambda: small.node.body_budget.taken == 200_000)
        eventually("it is given back", lambda: small.node.body_budget.taken == 0)


def test_default_bound_of_a_body(node: Served) -> None:
    """By default a node parses a body of 2 MiB, and refuses one byte more at its head."""
    with wire(node.port) as connection:
        connection.send(request(b"POST", PATIENT, body=padded(BODY_BYTES_MAX)))
        assert connection.answer().status == 200
        connection.send(head(BODY_BYTES_MAX + 1))
        assert connection.answer().status == 413


def test_commas_and_brackets_in_a_text_do_not_count(node: Served) -> None:
    """A text may contain more commas and brackets than a body may contain values, beside escaped quotes."""
    with wire(node.port) as connection:
        text = b'{"keys":["%b"]}' % (b'\\"[,{\\\\' * 200_000)
        connection.send(request(b"POST", PATIENT, body=text))
        assert connection.answer().status == 200


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (b"[" + b"1," * 20_001 + b"1]", b"commas"),
        (b"[" + b'"",' * 20_001 + b'""]', b"commas"),
        (b"[" + b",".join([b"[" * 90 + b"]" * 90] * 223) + b"]", b"arrays and objects"),
        (b"[" + b",".join([b'{"":' * 90 + b"0" + b"}" * 90] * 223) + b"]", b"arrays and objects"),
        (b'["' + b'","' * 600_000 + b'"]', b"commas"),
    ],
    ids=["numbers", "texts", "arrays", "objects", "a flood of texts"],
)
def test_default_bound_of_values(node: Served, value: bytes, what: bytes) -> None:
    """By default a node refuses to parse a body of more than 20 000 commas, or arrays and objects."""
    with wire(node.port) as connection:
        connection.send(request(b"POST", b"/v1/records", body=b'{"key":"a","value":%b}' % value))
        answer = connection.answer()

    assert (answer.status, answer.reason, what in answer.body) == (413, "too_large", True)


@pytest.mark.parametrize(
    ("path", "before"), [(b"/v1/multi-get", b'{"keys":['), (b"/v1/records", b'{"key":"a","value":[')]
)
def test_body_of_too_many_values_is_not_parsed(node: Served, path: bytes, before: bytes) -> None:
    """Very many empty arrays, which would take long and much memory to parse, get 413."""
    with wire(node.port) as connection:
        connection.send(request(b"POST", path, body=before + b"[]," * 500_000 + b"[]]}"))
        answer = connection.answer()

    assert (answer.status, answer.reason) == (413, "too_large")
    assert b"commas" in answer.body


def test_body_of_too_many_nested_arrays_is_not_parsed(node: Served) -> None:
    """Very many arrays between few commas, which would take long to parse, get 413; brackets in a text do not count."""
    nested = b",".join([b"[" * 40 + b"]" * 40] * 19_000)
    text = b'{"keys":["%b"]}' % (b"[{" * 500_000)
    with wire(node.port) as connection:
        connection.send(request(b"POST", b"/v1/records", body=b'{"key":"a","value":[%b]}' % nested))
        refused = connection.answer()
        connection.send(request(b"POST", b"/v1/multi-get", body=text))
        read = connection.answer()

    assert (refused.status, refused.reason, read.status) == (413, "too_large", 200)
    assert b"arrays and objects" in refused.body
