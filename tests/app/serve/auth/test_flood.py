"""Floods of bad tokens, and tokens of any size: good callers are answered, and nothing grows."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from queryable_app.serve.auth.authenticator import Authenticator
from tests.support.served import Served, exchange, parsed, read_answers, served
from tests.support.tokens import SECRET_REF, bearer, claims, raw_token, secret_directory, token

BAD_TOKENS: Final = 8_000
AT_ONCE: Final = 100
CONNECTIONS: Final = 4


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Served]:
    settings = {"auth_secret_dir": secret_directory(tmp_path / "jwt")}
    auth = {"jwt": SECRET_REF, "rules": [{"allow": ["read"]}]}
    with served(tmp_path / "node", settings=settings, auth=auth) as running:
        running.put(b"a", b'{"n":1}')
        yield running


def authenticator_of(node: Served) -> Authenticator:
    assert node.node.authenticator is not None
    return node.node.authenticator


def different_bad_tokens(count: int) -> list[bytes]:
    """Return tokens that differ in their signatures, their payloads or their headers, and of which none is good."""
    rng = random.Random(count)
    head, payload, _ = token().split(".")
    found = []
    for number in range(count):
        signature = rng.randbytes(32)
        if number % 10 == 0:
            text = raw_token({"alg": "HS256", "kid": f"k{number}"}, claims(sub=f"s{number}"), signature)
        elif number % 10 == 1:
            text = raw_token({"alg": "none"}, {"n": number})
        else:
            text = raw_token(b"", b"", signature).replace("..", f"{head}.{payload}.")
        found.append(text.encode())
    return found


def send(port: int, tokens: Sequence[bytes], statuses: Counter[int]) -> None:
    """Send a request with each token on one connection, many at once, and count the statuses."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        for start in range(0, len(tokens), AT_ONCE):
            some = tokens[start : start + AT_ONCE]
            lines = b"GET /v1/keys/a HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %b\r\n\r\n"
            connection.sendall(b"".join(lines % each for each in some))
            received = read_answers(connection, len(some))
            statuses.update(int(each[:3]) for each in received.split(b"HTTP/1.1 ")[1:])


def test_good_callers_are_answered_during_a_flood(node: Served) -> None:
    """While thousands of different bad tokens arrive, every read with a good token is answered, old tokens and new ones."""
    bad = different_bad_tokens(BAD_TOKENS)
    statuses: Counter[int] = Counter()
    share = len(bad) // CONNECTIONS
    floods = [
        threading.Thread(
            target=send, args=(node.port, bad[n * share : (n + 1) * share], statuses), daemon=True
        )
        for n in range(CONNECTIONS)
    ]
    known, began = bearer(), time.monotonic()
    cpu_before = node.on_loop(time.thread_time)
    with node.client(timeout=60) as http:
        assert http.get("/v1/keys/a", headers=known).status_code == 200
        for flood in floods:
            flood.start()
        good = 0
        while any(flood.is_alive() for flood in floods) or good < 20:
            new = good % 10 == 9
            answer = http.get("/v1/keys/a", headers=bearer(sub=f"new-{good}") if new else known)
            assert answer.status_code == 200, answer.text
            good += 1
    seconds, cpu = time.monotonic() - began, node.on_loop(time.thread_time) - cpu_before
    print(f"{len(bad) / seconds:,.0f} bad tokens/s beside {good} good reads: {cpu / seconds:.0%} of a core")
    assert statuses.keys() <= {401, 429}
    assert statuses.total() == len(bad)
    remembered = len(authenticator_of(node)._accesses)
    assert remembered <= 1 + good // 10
    refused = node.node.audit.refused_by_reason
    assert sum(refused.values()) == len(bad)


def test_new_connections_with_bad_tokens_leave_room(node: Served) -> None:
    """A flood of bad tokens with a connection for each does not keep a new good token on a new connection out."""
    statuses: Counter[int] = Counter()
    for number, each in enumerate(different_bad_tokens(300)):
        send(node.port, [each], statuses)
        if number % 20 == 0:
            with node.client() as http:
                assert http.get("/v1/keys/a", headers=bearer(sub=f"new-{number}")).status_code == 200
    assert statuses.total() == 300


@pytest.mark.parametrize("size", [8_193, 20_000, 60_000, 70_000, 1_000_000, 3_000_000])
@pytest.mark.parametrize("shape", ["one part", "three parts"])
def test_large_tokens_are_refused(node: Served, size: int, shape: str) -> None:
    """A token of up to megabytes is refused, by its size or as too large a head, and the next connection is answered."""
    text = b"x" * size if shape == "one part" else b".".join([b"x" * (size // 3)] * 3)
    request = b"GET /v1/keys/a HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %b\r\n\r\n" % text
    try:
        answer = exchange(node.port, request)
    except ConnectionError:
        answer = b""  # the node closes while the rest is being sent
    if answer:
        assert parsed(answer)[0] == (401 if size < 65_000 else 413)
        assert b"xxxx" not in answer
    else:
        assert size > 65_536
    with node.client() as http:
        assert http.get("/v1/keys/a", headers=bearer()).status_code == 200
    assert len(authenticator_of(node)._accesses) == 1


def test_verified_tokens_are_bounded(node: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The latest of very many good tokens are remembered, and each of them is answered."""
    from queryable_app.serve.auth import authenticator

    monkeypatch.setattr(authenticator, "TOKENS_MAX", 50)
    with node.client() as http:
        for number in range(200):
            more: dict[str, Any] = bearer(sub=f"user-{number}")
            assert http.get("/v1/keys/a", headers=more).status_code == 200
    assert len(authenticator_of(node)._accesses) == 50
