"""Tokens of an issuer, whose server of keys answers well, badly or not at all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jwt
import pytest

from queryable_app.serve.auth import jwks
from queryable_app.serve.auth.jwks import DOCUMENT_BYTES_MAX, KeysRefused, parse_keys
from tests.support.issuer import Issuer
from tests.support.served import Served, served
from tests.support.tokens import AUDIENCE, ISSUER, claims, hs256, jwk, private_key, signed, token
from tests.support.waiting import eventually

ALGORITHMS = ("RS256", "ES256", "EdDSA")
RULES = [{"allow": ["read"]}]


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    running = Issuer([jwk(algorithm, algorithm) for algorithm in ALGORITHMS])
    yield running
    running.close()


@contextmanager
def node_of(issuer: Issuer, directory: Path) -> Iterator[Served]:
    auth = {"jwt": {"jwksUrl": issuer.url, "issuer": ISSUER, "audience": AUDIENCE}, "rules": RULES}
    with served(directory, auth=auth) as node:
        assert node.node.authenticator is not None
        node.begin(node.node.authenticator.source.start()).result(10)
        node.put(b"a", b"1")
        try:
            yield node
        finally:
            node.begin(node.node.authenticator.source.stop()).result(10)


def status(node: Served, text: str) -> int:
    with node.client() as client:
        return client.get("/v1/keys/a", headers={"authorization": f"Bearer {text}"}).status_code


def test_tokens_of_each_algorithm(issuer: Issuer, tmp_path: Path) -> None:
    """A token that the issuer signed is accepted, with each algorithm, and one of another key is refused."""
    with node_of(issuer, tmp_path) as node:
        for algorithm in ALGORITHMS:
            assert status(node, signed(algorithm, algorithm)) == 200
            assert status(node, signed(algorithm, algorithm, 1)) == 401
            assert status(node, signed(algorithm, algorithm, exp=1)) == 401
            assert status(node, signed(algorithm, algorithm, aud="other")) == 401
            assert status(node, signed(algorithm, None)) == 200


def test_public_key_is_no_secret(issuer: Issuer, tmp_path: Path) -> None:
    """A token that is signed with the public key as if it were a secret is refused."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    public = private_key("RS256").public_key()
    with node_of(issuer, tmp_path) as node:
        for content in (
            public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
            jwk("RS256", None)["n"].encode(),
        ):
            assert status(node, hs256(claims(), content, kid="RS256")) == 401
        assert status(node, token()) == 401
        # The key id of one type of key, and the algorithm of another.
        assert status(node, signed("ES256", "RS256")) == 401


def test_unknown_key_is_fetched_once(issuer: Issuer, tmp_path: Path) -> None:
    """A token with an unknown key id makes the node fetch the keys, and further unknown ones do not."""
    with node_of(issuer, tmp_path) as node:
        source: Any = node.node.authenticator and node.node.authenticator.source
        assert status(node, signed("ES256", "ES256")) == 200
        issuer.has(jwk("ES256", "new", 1))
        source._fetched_at -= 100
        assert status(node, signed("ES256", "new", 1)) == 200
        assert status(node, signed("ES256", "ES256")) == 401
        before = issuer.requests
        for number in range(20):
            assert status(node, signed("ES256", f"unknown-{number}", 1)) == 401
        assert issuer.requests == before


BAD_ANSWERS: dict[str, tuple[int, dict[str, str], bytes]] = {
    "an error": (500, {}, b"{}"),
    "a redirect": (302, {"location": "http://169.254.169.254/latest/meta-data"}, b""),
    "HTML": (200, {"content-type": "text/html"}, b"<html>"),
    "a list": (200, {}, b"[]"),
    "no keys": (200, {}, b'{"keys": []}'),
    "deep": (200, {}, b"[" * 100_000),
    "10 MB": (200, {}, b" " * 10_000_000),
    "only a symmetric key": (200, {}, json.dumps({"keys": [{"kty": "oct", "k": "YQ", "kid": "x"}]}).encode()),
}


@pytest.mark.parametrize("answer", BAD_ANSWERS)
def test_last_good_keys_stay(issuer: Issuer, tmp_path: Path, answer: str) -> None:
    """While the issuer answers nonsense, the node keeps the keys that it has."""
    with node_of(issuer, tmp_path) as node:
        source: Any = node.node.authenticator and node.node.authenticator.source
        assert status(node, signed("EdDSA", "EdDSA")) == 200
        issuer.answer = BAD_ANSWERS[answer]
        before = issuer.requests
        assert not node.begin(source._fetch()).result(15)
        assert issuer.requests == before + 1
        assert status(node, signed("EdDSA", "EdDSA", sub="another")) == 200


@pytest.mark.parametrize("pause_seconds", [0.0, 0.05], ids=["endless", "endless and slow"])
def test_answer_without_an_end_is_given_up(
    issuer: Issuer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pause_seconds: float
) -> None:
    """An answer that does not end, fast or slow, is given up, and the node keeps the keys that it has."""
    monkeypatch.setattr(jwks, "_FETCH_SECONDS_MAX", 2.0)
    with node_of(issuer, tmp_path) as node:
        source: Any = node.node.authenticator and node.node.authenticator.source
        assert status(node, signed("EdDSA", "EdDSA")) == 200
        issuer.pause_seconds = pause_seconds
        assert not node.begin(source._fetch()).result(15)
        assert issuer.endless_bytes < 100 * DOCUMENT_BYTES_MAX
        assert status(node, signed("EdDSA", "EdDSA", sub="another")) == 200


def test_redirect_is_not_followed(issuer: Issuer, tmp_path: Path) -> None:
    """A redirect of the issuer reaches no other server, so no address inside of the network."""
    other = Issuer([jwk("EdDSA", "of another")])
    try:
        with node_of(issuer, tmp_path) as node:
            source: Any = node.node.authenticator and node.node.authenticator.source
            assert status(node, signed("EdDSA", "EdDSA")) == 200
            for code in (301, 302, 303, 307, 308):
                issuer.answer = (code, {"location": other.url}, b"")
                assert not node.begin(source._fetch()).result(15)
            assert other.requests == 0
            assert status(node, signed("EdDSA", "of another")) == 401
    finally:
        other.close()


def test_without_keys_the_answer_is_not_now(tmp_path: Path) -> None:
    """Before the first keys are there, a token gets 503, and its keys are found once the issuer is there."""
    issuer = Issuer([])
    try:
        with node_of(issuer, tmp_path) as node:
            assert status(node, signed("RS256", "RS256")) == 503
            issuer.has(jwk("RS256", "RS256"))
            eventually("the keys are fetched", lambda: status(node, signed("RS256", "RS256")) == 200)
    finally:
        issuer.close()


def test_keys_that_are_not_taken() -> None:
    """A key that is short, symmetric, for encryption, of another curve or of another algorithm is ignored."""
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    good = jwk("RS256", "good")
    short = jwt.algorithms.RSAAlgorithm.to_jwk(
        rsa.generate_private_key(65537, 1024).public_key(), as_dict=True
    )
    curve = jwt.algorithms.ECAlgorithm.to_jwk(
        ec.generate_private_key(ec.SECP384R1()).public_key(), as_dict=True
    )
    bad: list[Any] = [
        {**short, "key_ops": ["verify"]},
        {**curve, "key_ops": ["verify"]},
        {"kty": "oct", "k": "YWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWE"},
        {**good, "use": "enc"},
        {**good, "alg": "RS512"},
        {**good, "key_ops": ["sign"]},
        {**good, "n": "AQAB!"},
        {**good, "kid": 7},
        "text",
        {},
    ]
    assert [key.key_id for key in parse_keys(json.dumps({"keys": [*bad, good]}).encode())] == ["good"]
    with pytest.raises(KeysRefused):
        parse_keys(json.dumps({"keys": bad}).encode())
    assert DOCUMENT_BYTES_MAX < 1_000_000
