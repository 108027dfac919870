"""Test TLS between nodes, over real sockets."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.certificates import CertificateAuthority, mount, mount_for_localhost
from tests.support.node_cluster import three_nodes
from tests.support.tls_node import SPEC, connect, trusting
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("quick_polls")


def test_nodes_read_from_each_other_over_tls(tmp_path: Path, ca: CertificateAuthority) -> None:
    """Three nodes exchange heartbeats, and forward reads of every kind, over verified TLS."""
    mount_for_localhost(tmp_path / "secret", ca)
    tls = {**SPEC, "clientAuth": "require"}
    settings = {"tls_dir": str(tmp_path / "secret")}
    with three_nodes(tmp_path, 1, tls=tls, settings=settings) as cluster:
        for number in range(30):
            cluster.put(b"key-%d" % number, b'{"n":%d}' % number)
        context = trusting(ca, ca.sign(), tmp_path)
        eventually(
            "all nodes answer heartbeats", lambda: not any(n.node.peers.suspected for n in cluster.nodes)
        )
        with cluster.nodes[0].client(verify=context) as client:
            answers = [client.get(f"/v1/keys/key-{number}") for number in range(30)]
            assert [answer.json() for answer in answers] == [{"n": number} for number in range(30)]
            assert {answer.headers["qt-served-by"] for answer in answers} == {
                f"users-r1-{n}" for n in range(3)
            }
            keys = [f"key-{number}" for number in range(30)]
            assert all(i["found"] for i in client.post("/v1/multi-get", json={"keys": keys}).json()["items"])
            assert len(client.get("/v1/scan?limit=100").json()["items"]) == 30


def test_a_node_of_another_ca_is_not_called(tmp_path: Path, ca: CertificateAuthority) -> None:
    """A node whose certificate is of another CA is suspected, and gets no token."""
    mount_for_localhost(tmp_path / "secret", ca)
    other = CertificateAuthority("others")
    with three_nodes(tmp_path, 1, tls=SPEC, settings={"tls_dir": str(tmp_path / "secret")}) as cluster:
        eventually("all answer", lambda: len(cluster.nodes[0].node.peers.last_heartbeats) == 2)
        cluster.stop(1)
        port = cluster.nodes[1].port
        seen = _impostor(port, other, tmp_path)
        eventually("the impostor was called", seen)
        assert cluster.nodes[0].node.peers.suspected == {1}
        assert seen() == ["handshake refused"]


def _impostor(port: int, ca: CertificateAuthority, directory: Path) -> Callable[[], list[str]]:
    """Listen with a certificate of another CA, and return what the first connection brings."""
    certificate, key = ca.sign()
    (directory / "i.crt").write_bytes(certificate)
    (directory / "i.key").write_bytes(key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "i.crt", directory / "i.key")
    seen: list[str] = []
    listening = socket.create_server(("127.0.0.1", port))

    def accept() -> None:
        with listening:
            connection, _ = listening.accept()
            connection.settimeout(20)
            try:
                with context.wrap_socket(connection, server_side=True) as wrapped:
                    seen.append(wrapped.recv(4096).decode())
            except OSError:
                seen.append("handshake refused")

    threading.Thread(target=accept, daemon=True).start()
    return lambda: list(seen)


def test_nodes_show_their_own_certificate_to_each_other(tmp_path: Path, ca: CertificateAuthority) -> None:
    """With a certificate of their own, nodes call each other by its name, and clients get the other one."""
    mount(tmp_path / "secret", None, *ca.sign(["users.example", "127.0.0.1"]))
    inner = CertificateAuthority("of the view")
    mount(tmp_path / "nodes", inner.pem, *inner.sign(["nodes.users.example"]))
    settings = {
        "tls_dir": str(tmp_path / "secret"),
        "node_tls_dir": str(tmp_path / "nodes"),
        "node_tls_name": "nodes.users.example",
    }
    with three_nodes(tmp_path, 1, tls=SPEC, settings=settings) as cluster:
        eventually("all answer", lambda: len(cluster.nodes[0].node.peers.last_heartbeats) == 2)
        with connect(cluster.nodes[0], trusting(ca)) as connection:
            assert connection.getpeercert()
        inner_two = CertificateAuthority("of the view")
        mount(tmp_path / "nodes", inner_two.pem + inner.pem, *inner.sign(["nodes.users.example"]))
        eventually("it is loaded", lambda: inner_two.pem in cluster.nodes[0].node.tls.between.files.ca)  # type: ignore[union-attr]
        eventually("all reach all", lambda: not any(n.node.peers.suspected for n in cluster.nodes))
