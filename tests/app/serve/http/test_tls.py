"""Test TLS between clients and a node, and between nodes, over real sockets."""

from __future__ import annotations

import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from queryable_app.contract import NODE_HEADER
from queryable_app.platform.certificates import client_context
from queryable_app.policy.descriptor_plan import HANDSHAKES_MAX
from queryable_app.serve.base import node_tls
from tests.support.certificates import CertificateAuthority, mount, mount_for_localhost
from tests.support.node_cluster import TOKEN, three_nodes
from tests.support.served import Served, read_answers, served
from tests.support.tokens import SECRET_REF, bearer, secret_directory
from tests.support.waiting import eventually

SPEC = {"secretRef": {"name": "tls"}}
DAY = timedelta(days=1)


@pytest.fixture(scope="module")
def ca() -> CertificateAuthority:
    return CertificateAuthority()


@pytest.fixture(autouse=True)
def _quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_tls, "_POLL_SECONDS", 0.02)


@contextmanager
def tls_node(
    directory: Path,
    ca: CertificateAuthority,
    client_auth: str = "none",
    auth: dict[str, Any] | None = None,
    **settings: Any,
) -> Iterator[Served]:
    """Run a node with a certificate for 127.0.0.1, in `directory/secret`, and one row."""
    mount_for_localhost(directory / "secret", ca)
    (directory / "token").write_text(TOKEN)
    settings = {
        "tls_dir": str(directory / "secret"),
        "internal_token_path": str(directory / "token"),
    } | settings
    spec = {"tls": {**SPEC, "clientAuth": client_auth}} | ({"auth": auth} if auth else {})
    with served(directory / "node", settings=settings, **spec) as node:
        node.put(b"a", b'{"n":1}')
        yield node


def trusting(
    ca: CertificateAuthority, cert: tuple[bytes, bytes] | None = None, directory: Path = Path()
) -> ssl.SSLContext:
    context = client_context(ca.pem)
    if cert is not None:
        for name, content in zip(("client.crt", "client.key"), cert, strict=True):
            (directory / name).write_bytes(content)
        context.load_cert_chain(directory / "client.crt", directory / "client.key")
    return context


def connect(node: Served, context: ssl.SSLContext) -> ssl.SSLSocket:
    plain = socket.create_connection(("127.0.0.1", node.port), timeout=20)
    return context.wrap_socket(plain, server_hostname="127.0.0.1")


def read_key(connection: ssl.SSLSocket) -> bytes:
    connection.sendall(b"GET /v1/keys/a HTTP/1.1\r\nHost: x\r\n\r\n")
    return connection.recv(1 << 16)


def test_a_key_is_read_over_tls(tmp_path: Path, ca: CertificateAuthority) -> None:
    """A client that trusts the CA reads a key over TLS 1.3 with ALPN http/1.1."""
    with tls_node(tmp_path, ca) as node, connect(node, trusting(ca)) as connection:
        answer = read_key(connection)
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b'{"n":1}' in answer
        assert (connection.version(), connection.selected_alpn_protocol()) == ("TLSv1.3", "http/1.1")


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
def test_tls_1_1_is_refused(tmp_path: Path, ca: CertificateAuthority) -> None:
    """A client that speaks no newer version than TLS 1.1 gets no connection, and one of TLS 1.2 does."""
    old = trusting(ca)
    old.minimum_version = ssl.TLSVersion.TLSv1
    old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL:@SECLEVEL=0")
    new = trusting(ca)
    new.maximum_version = ssl.TLSVersion.TLSv1_2
    with tls_node(tmp_path, ca) as node:
        with pytest.raises(OSError, match=r"(?i)version|protocol|reset|eof"):
            connect(node, old)
        with connect(node, new) as connection:
            assert read_key(connection).startswith(b"HTTP/1.1 200 ")


def test_plain_http_gets_a_sentence(tmp_path: Path, ca: CertificateAuthority) -> None:
    """Plain HTTP on the TLS port is answered with 400, and a sentence that names https."""
    with tls_node(tmp_path, ca) as node:
        answer = httpx.get(f"http://127.0.0.1:{node.port}/v1/keys/a", timeout=20)
        assert (answer.status_code, answer.json()["reason"]) == (400, "invalid_request")
        assert "https://" in answer.json()["advice"]


def test_large_plain_http_gets_the_sentence_too(tmp_path: Path, ca: CertificateAuthority) -> None:
    """A client of plain HTTP that is still sending its body reads the answer, and no reset."""
    with tls_node(tmp_path, ca) as node:
        answer = httpx.post(f"http://127.0.0.1:{node.port}/v1/multi-get", content=b"x" * 100_000, timeout=20)
        assert answer.status_code == 400


def test_new_handshakes_get_the_new_certificate(tmp_path: Path, ca: CertificateAuthority) -> None:
    """A replaced certificate is shown to new connections, and open connections go on."""
    with tls_node(tmp_path, ca) as node, connect(node, trusting(ca)) as old:
        before = old.getpeercert(binary_form=True)
        mount_for_localhost(tmp_path / "secret", ca)

        def is_new() -> bool:
            with connect(node, trusting(ca)) as connection:
                return connection.getpeercert(binary_form=True) != before

        eventually("the new certificate is shown", is_new)
        assert read_key(old).startswith(b"HTTP/1.1 200 ")


def _expired(ca: CertificateAuthority) -> tuple[bytes, bytes]:
    return ca.sign(starts_in=-2 * DAY, ends_in=-DAY)


def _not_yet_valid(ca: CertificateAuthority) -> tuple[bytes, bytes]:
    return ca.sign(starts_in=DAY, ends_in=2 * DAY)


def _wrong_key(ca: CertificateAuthority) -> tuple[bytes, bytes]:
    return ca.sign()[0], ca.sign()[1]


def _no_pem(_: CertificateAuthority) -> tuple[bytes, bytes]:
    return b"<html>", b"\0"


UNUSABLE = {
    "expired": (_expired, "certificate has expired"),
    "not-yet-valid": (_not_yet_valid, "certificate is not yet valid"),
    "wrong-key": (_wrong_key, "the key does not fit the certificate"),
    "no-pem": (_no_pem, "no certificate and key in PEM"),
}


@pytest.mark.parametrize("kind", UNUSABLE)
def test_an_unusable_certificate_is_refused_and_the_old_one_kept(
    tmp_path: Path, ca: CertificateAuthority, kind: str
) -> None:
    """A certificate that cannot be used is named in status and metrics, and the one before it stays in use."""
    make: Callable[[CertificateAuthority], tuple[bytes, bytes]]
    make, why = UNUSABLE[kind]
    with tls_node(tmp_path, ca) as node, node.client(verify=trusting(ca)) as client:
        expiry = _expiry_metric(client)
        mount(tmp_path / "secret", ca.pem, *make(ca))
        refused = eventually("it is refused", lambda: client.get("/v1/status").json()["tls"]["refused"])
        assert why in refused
        metrics = client.get("/metrics").text
        assert 'qt_tls_certificate_refused{certificate="clients"} 1.0' in metrics
        assert _expiry_metric(client) == expiry
        with connect(node, trusting(ca)) as connection:
            assert read_key(connection).startswith(b"HTTP/1.1 200 ")
        mount_for_localhost(tmp_path / "secret", ca)
        eventually("a good one is taken", lambda: client.get("/v1/status").json()["tls"]["refused"] is None)


def _expiry_metric(client: httpx.Client) -> str:
    name = 'qt_tls_certificate_expiry_timestamp_seconds{certificate="clients"} '
    (line,) = (line for line in client.get("/metrics").text.splitlines() if line.startswith(name))
    return line.removeprefix(name)


def test_a_deleted_secret_leaves_the_certificate_in_use(tmp_path: Path, ca: CertificateAuthority) -> None:
    """If the mounted files vanish, the node says so and keeps the certificate that it has."""
    with tls_node(tmp_path, ca) as node, node.client(verify=trusting(ca)) as client:
        (tmp_path / "secret" / "..data").unlink()
        refused = eventually("it is noticed", lambda: client.get("/v1/status").json()["tls"]["refused"])
        assert "tls.crt cannot be read" in refused
        with connect(node, trusting(ca)) as connection:
            assert read_key(connection).startswith(b"HTTP/1.1 200 ")


def test_no_read_fails_while_certificates_rotate(tmp_path: Path, ca: CertificateAuthority) -> None:
    """Reads on kept-alive and on new connections all succeed while the certificate is replaced again and again."""
    with tls_node(tmp_path, ca) as node, ExitStack() as stack:
        context, ended, failed, done = trusting(ca), threading.Event(), [], [0, 0]

        def read(new: bool) -> None:
            client = stack.enter_context(node.client(verify=context))
            while not ended.is_set():
                try:
                    if new:
                        with node.client(verify=context) as fresh:
                            status = fresh.get("/v1/keys/a").status_code
                    else:
                        status = client.get("/v1/keys/a").status_code
                    done[new] += 1
                    if status != 200:
                        failed.append(str(status))
                except httpx.HTTPError as error:
                    failed.append(repr(error))

        threads = [threading.Thread(target=read, args=(new,)) for new in (False, True)]
        for thread in threads:
            thread.start()
        shown: set[bytes | None] = set()
        for _ in range(5):
            mount_for_localhost(tmp_path / "secret", ca)
            known = len(shown)

            def is_shown(known: int = known) -> bool:
                with connect(node, context) as connection:
                    shown.add(connection.getpeercert(binary_form=True))
                return len(shown) > known

            eventually("the certificate is shown", is_shown)
        eventually("both have read", lambda: min(done) > 20)
        ended.set()
        for thread in threads:
            thread.join(20)
        assert failed == []


def test_half_handshakes_end(tmp_path: Path, ca: CertificateAuthority) -> None:
    """A connection that sends nothing, or the beginning of a handshake, is closed after the time for a head."""
    with tls_node(tmp_path, ca, head_seconds_max=1) as node:
        for beginning in (b"", b"\x16", b"\x16\x03\x01\x02\x00\x01"):
            with socket.create_connection(("127.0.0.1", node.port), timeout=30) as connection:
                connection.sendall(beginning)
                assert _ended(connection)
        with connect(node, trusting(ca)) as connection:
            assert read_key(connection).startswith(b"HTTP/1.1 200 ")


def _ended(connection: socket.socket) -> bool:
    """Return whether the node closes the connection before the socket's time is over."""
    try:
        while connection.recv(4096):
            pass
    except ConnectionResetError:
        return True
    return True


def test_a_flood_of_half_handshakes_leaves_room(tmp_path: Path, ca: CertificateAuthority) -> None:
    """With more half handshakes than the node keeps, a new client is answered, and so is one that was connected."""
    with (
        tls_node(tmp_path, ca, head_seconds_max=600) as node,
        ExitStack() as stack,
        connect(node, trusting(ca)) as before,
    ):
        oldest = stack.enter_context(socket.create_connection(("127.0.0.1", node.port), timeout=60))
        for number in range(3 * HANDSHAKES_MAX):
            half = stack.enter_context(socket.create_connection(("127.0.0.1", node.port), timeout=20))
            half.sendall((b"\x16\x03\x01\x02\x00", b"", b"\x16")[number % 3])
        with connect(node, trusting(ca)) as connection:
            assert read_key(connection).startswith(b"HTTP/1.1 200 ")
        assert read_key(before).startswith(b"HTTP/1.1 200 ")
        assert _ended(oldest)  # long before its time is over


def test_garbage_after_the_first_byte_ends_the_connection(tmp_path: Path, ca: CertificateAuthority) -> None:
    """Bytes that begin like TLS and are not end their connection alone."""
    with tls_node(tmp_path, ca) as node:
        with socket.create_connection(("127.0.0.1", node.port), timeout=20) as connection:
            connection.sendall(b"\x16" + b"\xff" * 4096)
            assert _ended(connection)
        with connect(node, trusting(ca)) as connection:
            assert read_key(connection).startswith(b"HTTP/1.1 200 ")


# Client certificates.


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


# Inputs by a shared buffer.


def test_a_body_larger_than_the_buffer_arrives_whole(tmp_path: Path, ca: CertificateAuthority) -> None:
    """A request of half a megabyte is read whole over TLS, and so is its answer."""
    keys = ["a", *(f"missing-{number:0>290}" for number in range(1_999))]
    with tls_node(tmp_path, ca) as node, node.client(verify=trusting(ca), timeout=60) as client:
        items = client.post("/v1/multi-get", json={"keys": keys}).json()["items"]
    assert [item["key"] for item in items] == keys
    assert [item["found"] for item in items] == [True] + [False] * 1_999


def test_inputs_of_connections_stay_apart(tmp_path: Path, ca: CertificateAuthority) -> None:
    """Connections that send at the same time, in pieces and many requests at once, each get the answers of their own requests."""
    with tls_node(tmp_path, ca) as node:
        for number in range(200):
            node.put(b"k-%d" % number, b'{"n":%d}' % number)
        wrong: list[str] = []

        def read(first: int) -> None:
            lines = "GET /v1/keys/k-{} HTTP/1.1\r\nHost: x\r\n\r\n"
            with connect(node, trusting(ca)) as connection:
                for start in range(first, first + 150, 3):
                    numbers = [(start + each) % 200 for each in range(3)]
                    request = "".join(lines.format(number) for number in numbers).encode()
                    for piece in (request[:7], request[7:50], request[50:]):
                        connection.sendall(piece)
                    bodies = re.findall(rb"\{[^}]*\}", read_answers(connection, 3))
                    if bodies != [b'{"n":%d}' % number for number in numbers]:
                        wrong.append(f"{numbers}: {bodies}")

        threads = [threading.Thread(target=read, args=(7 * n,), daemon=True) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not wrong
        assert not any(thread.is_alive() for thread in threads)


# Between nodes.


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
