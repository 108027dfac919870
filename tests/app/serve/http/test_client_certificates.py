"""Test the certificates of clients with each `clientAuth`, over real sockets."""

from __future__ import annotations

from pathlib import Path

import pytest

from queryable_app.contract import NODE_HEADER
from tests.support.certificates import CertificateAuthority
from tests.support.node_cluster import TOKEN
from tests.support.tls_node import connect, read_key, tls_node, trusting
from tests.support.tokens import SECRET_REF, bearer, secret_directory


def test_a_required_certificate_is_asked_for_by_a_sentence(tmp_path: Path, ca: CertificateAuthority) -> None:
    """Without a certificate that is required, every read gets 401, also on the fast lane; probes and metrics are."""
    with tls_node(tmp_path, ca, "require") as node:
        context = trusting(ca)
        for path in ("/v1/keys/a", "/v1/keys/a?consistency=any", "/v1/status", "/", "/v1/scan"):
            with node.client(verify=context) as client:
                answer = client.get(path)
                assert (answer.status_code, answer.json()["reason"]) == (401, "unauthenticated"), path
        with node.client(verify=context) as client:
            assert client.post("/v1/multi-get", json={"keys": ["a"]}).status_code == 401
        with node.client(verify=context) as client:
            assert [client.get(path).status_code for path in ("/livez", "/metrics")] == [200, 200]
            assert client.get("/v1/keys/a").status_code == 401  # on the connection of the probe


def test_a_required_certificate_opens_the_fast_lane(tmp_path: Path, ca: CertificateAuthority) -> None:
    """A client with a certificate reads as without `clientAuth`, and the connection knows the subject."""
    with tls_node(tmp_path, ca, "require") as node:
        context = trusting(ca, ca.sign(subject="shop"), tmp_path)
        before = node.node.counters.fast_answers
        with connect(node, context) as connection:
            assert read_key(connection).startswith(b"HTTP/1.1 200 ")
            (open_connection,) = node.on_loop(lambda: list(node.protocol.open))
            assert open_connection.client_certificate["subject"] == ((("commonName", "shop"),),)
        assert node.node.counters.fast_answers == before + 1


@pytest.mark.parametrize("client_auth", ["request", "require"])
def test_a_certificate_of_another_ca_is_refused(
    tmp_path: Path, ca: CertificateAuthority, client_auth: str
) -> None:
    """A client certificate that ca.crt has not signed ends the handshake."""
    with tls_node(tmp_path, ca, client_auth) as node:
        context = trusting(ca, CertificateAuthority("others").sign(), tmp_path)
        with pytest.raises((OSError, AssertionError)), connect(node, context) as connection:
            assert read_key(connection)


def test_a_requested_certificate_may_be_missing(tmp_path: Path, ca: CertificateAuthority) -> None:
    """With `request` a client without a certificate is answered."""
    with tls_node(tmp_path, ca, "request") as node, connect(node, trusting(ca)) as connection:
        assert read_key(connection).startswith(b"HTTP/1.1 200 ")


def test_a_node_needs_no_client_certificate(tmp_path: Path, ca: CertificateAuthority) -> None:
    """The nodes' token stands in for a client certificate, and a wrong token does not."""
    with tls_node(tmp_path, ca, "require") as node:
        for token, status in ((TOKEN, 200), ("guess", 401)):
            with node.client(verify=trusting(ca), headers={NODE_HEADER: token}) as client:
                assert client.get("/v1/status").status_code == status


def test_a_token_does_not_stand_in_for_a_certificate(tmp_path: Path, ca: CertificateAuthority) -> None:
    """A view with tokens and required certificates answers a caller that has both, on the fast lane too."""
    secret = secret_directory(tmp_path / "jwt")
    auth = {"jwt": SECRET_REF, "rules": [{"claim": "sub", "glob": "*", "allow": ["read"]}]}
    headers = bearer(sub="shop")
    with_certificate = trusting(ca, ca.sign(), tmp_path)
    with tls_node(tmp_path, ca, "require", auth=auth, auth_secret_dir=secret) as node:
        with node.client(verify=with_certificate, headers=headers) as client:
            assert [client.get("/v1/keys/a").status_code for _ in range(2)] == [200, 200]
        with node.client(verify=trusting(ca), headers=headers) as client:
            answer = client.get("/v1/keys/a")
            assert (answer.status_code, "certificate" in answer.json()["detail"]) == (401, True)
        with node.client(verify=with_certificate) as client:
            assert client.get("/v1/keys/a").status_code == 401
