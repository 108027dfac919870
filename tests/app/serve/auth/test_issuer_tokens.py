"""A table of tokens of an issuer: each on the fast lane, in a task, forwarded, and at the node that a read is forwarded to."""

from __future__ import annotations

import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator
from typing import Any, Final

import jwt
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from queryable_app.placement.assignment import Placement
from tests.app.serve.auth.conftest import HERE, THERE
from tests.support.issuer import Issuer
from tests.support.node import put
from tests.support.node_cluster import APPLICATION_ID, TOKEN, NodeCluster
from tests.support.served import Served, exchange, now_ms, parsed
from tests.support.tokens import AUDIENCE, ISSUER, claims, hs256, jwk, private_key, raw_token, signed

ALGORITHMS: Final = ("RS256", "ES256", "EdDSA")
NOW: Final = int(time.time())


def parts(text: str) -> tuple[str, str, bytes]:
    head, payload, signature = text.split(".")
    return head, payload, urlsafe_b64decode(signature + "==")


def with_signature(text: str, signature: bytes) -> str:
    head, payload, _ = text.split(".")
    return f"{head}.{payload}.{urlsafe_b64encode(signature).rstrip(b'=').decode()}"


def with_header(algorithm: str, text: str, **header: Any) -> str:
    """Return the payload and the signature of a token behind another header."""
    _, payload, signature = text.split(".")
    head = raw_token({"alg": algorithm, "kid": algorithm, **header}, {}).split(".")[0]
    return f"{head}.{payload}.{signature}"


def resigned(algorithm: str, header: dict[str, Any], **changed: Any) -> str:
    """Sign with a key of another issuer, and say more in the header."""
    return jwt.encode(claims(**changed), private_key(algorithm, 9), algorithm, {"kid": algorithm, **header})


def pss_signed() -> str:
    text = signed("RS256", "RS256")
    message = text.rpartition(".")[0].encode()
    pss = padding.PSS(padding.MGF1(hashes.SHA256()), 32)
    return with_signature(text, private_key("RS256").sign(message, pss, hashes.SHA256()))


def der_signed() -> str:
    text = signed("ES256", "ES256")
    raw = parts(text)[2]
    return with_signature(
        text, encode_dss_signature(*(int.from_bytes(half) for half in (raw[:32], raw[32:])))
    )


def bad_tokens() -> dict[str, str]:
    table: dict[str, str] = {}
    for algorithm in ALGORITHMS:
        good = signed(algorithm, algorithm)
        head, _, signature = parts(good)
        other_payload = raw_token({}, claims(sub="root")).split(".")[1]
        table |= {
            f"{algorithm} of another key": signed(algorithm, algorithm, 1),
            f"{algorithm} with another payload": f"{head}.{other_payload}.{good.split('.')[2]}",
            f"{algorithm} with a changed bit": with_signature(
                good, bytes((signature[0] ^ 1,)) + signature[1:]
            ),
            f"{algorithm} with half a signature": with_signature(good, signature[: len(signature) // 2]),
            f"{algorithm} with a longer signature": with_signature(good, signature + b"\0"),
            f"{algorithm} with zeros": with_signature(good, bytes(len(signature))),
            f"{algorithm} of an unknown key": signed(algorithm, "unknown"),
            f"{algorithm} under the key of another algorithm": signed(
                algorithm, ALGORITHMS[ALGORITHMS.index(algorithm) - 1]
            ),
            f"{algorithm} as HS256": with_header("HS256", good),
            f"{algorithm} as none": with_header("none", good),
            f"{algorithm} with its own key in the header": resigned(
                algorithm, {"jwk": jwk(algorithm, algorithm, 9)}
            ),
            f"{algorithm} expired": signed(algorithm, algorithm, exp=NOW - 3600),
            f"{algorithm} not valid yet": signed(algorithm, algorithm, nbf=NOW + 86_400),
            f"{algorithm} of another issuer": signed(algorithm, algorithm, iss="https://other.test"),
            f"{algorithm} for another audience": signed(algorithm, algorithm, aud="other"),
            f"{algorithm} without an audience": signed(algorithm, algorithm, aud=None),
        }
    public = private_key("RS256").public_key()
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    der = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    p384 = ec.generate_private_key(ec.SECP384R1())
    return table | {
        "HS256 with the public key in PEM": hs256(claims(), pem, kid="RS256"),
        "HS256 with the public key in DER": hs256(claims(), der, kid="RS256"),
        "HS256 with the modulus": hs256(claims(), jwk("RS256", None)["n"].encode(), kid="RS256"),
        "HS256 with an empty secret": hs256(claims(), b"", kid="RS256"),
        "HS256 without a key id": hs256(claims(), pem),
        "RS256 with another padding": pss_signed(),
        "RS256 as RS512": with_header("RS512", signed("RS256", "RS256")),
        "ES256 in DER": der_signed(),
        "ES256 with another curve": jwt.encode(claims(), p384, "ES384", {"kid": "ES256"}),
        "ES256 with twice the order": with_signature(signed("ES256", "ES256"), b"\xff" * 64),
        "keys at another address": resigned("RS256", {"jku": "http://169.254.169.254/keys"}),
        "a certificate in the header": resigned("RS256", {"x5c": ["MIIB"], "x5u": "http://127.0.0.1/x"}),
        "a key id that is a path": signed("RS256", "../../../../dev/null"),
        "a key id that is long": signed("RS256", "k" * 300),
        "a key id that is a list": raw_token({"alg": "RS256", "kid": ["RS256"]}, claims()),
        "an encrypted token": ".".join([signed("RS256", "RS256"), "AAAA", "AAAA"]),
    }  # fmt: skip


BAD: Final = bad_tokens()


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Served]]:
    issuer = Issuer([jwk(algorithm, algorithm) for algorithm in ALGORITHMS])
    placement = Placement(1, APPLICATION_ID, (), ((0,), (1,)), ((), ()))
    auth = {
        "jwt": {"jwksUrl": issuer.url, "issuer": ISSUER, "audience": AUDIENCE},
        "rules": [{"claim": "sub", "equals": "alice", "allow": ["read"]}],
    }
    with NodeCluster(tmp_path_factory.mktemp("issuer"), [placement] * 2, auth=auth) as cluster:
        sources: list[Any] = []
        for partition, (node, keys) in enumerate(zip(cluster.nodes, (HERE, THERE), strict=True)):
            node.put_slice(put(0, keys["plain"].encode(), b'{"n":1}', now_ms()), partition=partition)
            authenticator = node.node.authenticator
            assert authenticator is not None
            sources.append(authenticator.source)
            node.begin(sources[-1].start()).result(10)
        yield list(cluster.nodes)
        for node, source in zip(cluster.nodes, sources, strict=True):
            node.begin(source.stop()).result(10)
    issuer.close()


def statuses(nodes: list[Served], text: str) -> list[int]:
    """Return what a token gets: here, in a task, forwarded, and at the second node as if the first one had let it pass."""
    authorization = f"Authorization: Bearer {text}\r\n"
    forwarded = f"qt-forwarded: {TOKEN}\r\nqt-deadline-ms: 5000\r\n"
    here, there = f"/v1/keys/{HERE['plain']}", f"/v1/keys/{THERE['plain']}"
    requests = [
        (nodes[0], here, ""),
        (nodes[0], f"{here}?consistency=any", ""),
        (nodes[0], there, ""),
        (nodes[0], f"{there}?consistency=any", ""),
        (nodes[1], there, forwarded),
        (nodes[1], f"{there}?consistency=any", forwarded),
    ]
    found = []
    for node, path, lines in requests:
        request = f"GET {path} HTTP/1.1\r\nHost: x\r\n{lines}{authorization}\r\n"
        found.append(parsed(exchange(node.port, request.encode()))[0])
    return found


@pytest.mark.parametrize("case", BAD)
def test_bad_token_is_refused_everywhere(nodes: list[Served], case: str) -> None:
    """A token that the issuer did not make for this view gets 401, also if the first node had let it pass."""
    assert statuses(nodes, BAD[case]) == [401] * 6


@pytest.mark.parametrize("key_id", ["named", "without a key id"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_good_token_reads_everywhere(nodes: list[Served], algorithm: str, key_id: str) -> None:
    """A token of the issuer reads: on the fast lane, in a task, forwarded, and at the second node."""
    assert statuses(nodes, signed(algorithm, algorithm if key_id == "named" else None)) == [200] * 6


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_good_token_without_a_rule_is_forbidden_everywhere(nodes: list[Served], algorithm: str) -> None:
    """A good token to which no rule applies gets 403 on each way."""
    assert statuses(nodes, signed(algorithm, algorithm, sub="bob")) == [403] * 6
