"""Test TLS between clients and a node, over real sockets."""

from __future__ import annotations

import re
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import httpx
import pytest

from queryable_app.policy.descriptor_plan import HANDSHAKES_MAX
from tests.support.certificates import CertificateAuthority, mount, mount_for_localhost
from tests.support.served import read_answers
from tests.support.tls_node import connect, read_key, tls_node, trusting
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("quick_polls")

DAY = timedelta(days=1)


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


def test_half_handshake_does_not_hold_up_a_stop(tmp_path: Path, ca: CertificateAuthority) -> None:
    """A node that stops ends the handshakes that are in progress, and waits for none of them."""
    with socket.socket() as half:
        half.settimeout(20)
        with tls_node(tmp_path, ca, head_seconds_max=600) as node:
            half.connect(("127.0.0.1", node.port))
            half.sendall(b"\x16\x03\x01\x02\x00\x01")
            with connect(node, trusting(ca)) as later:  # handshakes begin in their order
                assert read_key(later).startswith(b"HTTP/1.1 200 ")
        assert _ended(half)


def test_garbage_after_the_first_byte_ends_the_connection(tmp_path: Path, ca: CertificateAuthority) -> None:
    """Bytes that begin like TLS and are not end their connection alone."""
    with tls_node(tmp_path, ca) as node:
        with socket.create_connection(("127.0.0.1", node.port), timeout=20) as connection:
            connection.sendall(b"\x16" + b"\xff" * 4096)
            assert _ended(connection)
        with connect(node, trusting(ca)) as connection:
            assert read_key(connection).startswith(b"HTTP/1.1 200 ")


def test_a_body_of_many_records_arrives_whole(tmp_path: Path, ca: CertificateAuthority) -> None:
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
