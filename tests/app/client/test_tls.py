"""Test the clients and the command line over verified TLS."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from queryable_app.client import (
    AsyncQueryableTopic,
    DeadlineExceeded,
    InvalidRequest,
    QueryableTopic,
    Unreachable,
)
from queryable_app.commands.group import qtopic
from tests.support.certificates import CertificateAuthority, mount, mount_for_localhost
from tests.support.node_cluster import NodeCluster, three_nodes
from tests.support.socket_server import SocketServer
from tests.support.waiting import eventually

SPEC = {"secretRef": {"name": "tls"}}


NODE_NAME = "nodes.users.shop.example"


def _nodes(directory: Path, client_auth: str = "none", **own: str) -> NodeCluster:
    """Start three nodes whose certificate is in `directory/secret`, with its CA in `ca.crt` there."""
    settings = {"tls_dir": str(directory / "secret"), **own}
    cluster = three_nodes(directory, 1, tls={**SPEC, "clientAuth": client_auth}, settings=settings)
    for number in range(12):
        cluster.put(b"key-%d" % number, b'{"n":%d}' % number)
    return cluster


def _refuses(users: QueryableTopic, why: str) -> None:
    """Check that a read fails, and that its error says why; on a busy machine the first attempts may be late."""

    def names_it() -> bool:
        with pytest.raises((Unreachable, DeadlineExceeded)) as refused:
            users.get("key-1", deadline_ms=2000)
        return why in str(refused.value)

    eventually(f"the error says {why}", names_it)


def _client_files(directory: Path, ca: CertificateAuthority) -> dict[str, Path]:
    certificate, key = ca.sign(subject="shop")
    files = {name: directory / name for name in ("ca", "cert", "key")}
    for file, content in zip(files.values(), (ca.pem, certificate, key), strict=True):
        file.write_bytes(content)
    return files


def test_client_reads_each_key_from_its_node(tmp_path: Path) -> None:
    """With `ca` a client verifies and calls the nodes at the placement's addresses."""
    mount_for_localhost(tmp_path / "secret")
    with (
        _nodes(tmp_path) as cluster,
        QueryableTopic(cluster.addresses[0], ca=tmp_path / "secret" / "ca.crt") as users,
    ):
        rows = [users.get(f"key-{number}", deadline_ms=20_000) for number in range(12)]
        assert [row and row.value for row in rows] == [{"n": number} for number in range(12)]
        assert {row.served_by for row in rows if row} == {f"users-r1-{n}" for n in range(3)}


def test_nodes_are_verified_by_the_name_of_the_service(tmp_path: Path) -> None:
    """A certificate that names the Service alone is enough to read from each node at its own address, while the nodes have a
    certificate of their own for each other."""
    ca, between = CertificateAuthority(), CertificateAuthority("between nodes")
    mount(tmp_path / "secret", ca.pem, *ca.sign(["localhost"]))
    mount(tmp_path / "nodes", between.pem, *between.sign([NODE_NAME]))
    own = {"node_tls_dir": str(tmp_path / "nodes"), "node_tls_name": NODE_NAME}
    trusted = tmp_path / "secret" / "ca.crt"
    keys = [f"key-{number}" for number in range(12)]

    async def read_again_without_the_first_node(url: str, keys: list[str]) -> set[str]:
        async with AsyncQueryableTopic(url, ca=trusted) as users:
            assert await users.get(keys[0], deadline_ms=20_000)
            cluster.stop(0)
            rows = [await users.get(key, deadline_ms=20_000) for key in keys]
            return {row.served_by for row in rows if row}

    with _nodes(tmp_path, **own) as cluster:
        service = cluster.addresses[0].replace("127.0.0.1", "localhost")
        with QueryableTopic(service, ca=trusted) as users:
            served = {key: row.served_by for key in keys if (row := users.get(key, deadline_ms=20_000))}
            assert set(served.values()) == {f"users-r1-{n}" for n in range(3)}
            of_others = [key for key, node in served.items() if node != "users-r1-0"]
            others = asyncio.run(read_again_without_the_first_node(service, of_others))
            assert others == {"users-r1-1", "users-r1-2"}
            assert all(users.get(key, deadline_ms=20_000) for key in of_others)


def test_async_client_shows_its_certificate(tmp_path: Path) -> None:
    """With `cert` and `key` the asyncio client reads a view that requires a certificate."""
    files = _client_files(tmp_path, mount_for_localhost(tmp_path / "secret"))

    async def read(url: str) -> object:
        async with AsyncQueryableTopic(url, ca=files["ca"], cert=files["cert"], key=files["key"]) as users:
            row = await users.get("key-1", deadline_ms=20_000)
            return row and row.value

    with _nodes(tmp_path, "require") as cluster:
        assert asyncio.run(read(cluster.addresses[0])) == {"n": 1}


def test_certificate_of_another_ca_is_an_error_of_the_client(tmp_path: Path) -> None:
    """A client whose own certificate the nodes do not accept gets an error of the closed set, which says so."""
    files = _client_files(tmp_path, CertificateAuthority("others"))
    files["ca"].write_bytes(mount_for_localhost(tmp_path / "secret").pem)

    async def error_of_a_read(url: str) -> str:
        async with AsyncQueryableTopic(url, ca=files["ca"], cert=files["cert"], key=files["key"]) as users:
            with pytest.raises((Unreachable, DeadlineExceeded)) as refused:
                await users.get("key-1", deadline_ms=2000)
            return str(refused.value).lower()

    with _nodes(tmp_path, "require") as cluster:
        url = cluster.addresses[0]
        eventually("asyncio's says so", lambda: "unknown ca" in asyncio.run(error_of_a_read(url)))
        with QueryableTopic(url, ca=files["ca"], cert=files["cert"], key=files["key"]) as users:
            _refuses(users, "unknown ca")


@pytest.mark.parametrize("names", [["localhost"], ["users.example"]], ids=lambda names: names[0])
def test_client_refuses_a_node_of_another_name(tmp_path: Path, names: list[str]) -> None:
    """A node whose certificate does not name the host of its address is unreachable for a client."""
    ca = CertificateAuthority()
    mount(tmp_path / "secret", ca.pem, *ca.sign(names))
    with (
        _nodes(tmp_path) as cluster,
        QueryableTopic(cluster.addresses, ca=tmp_path / "secret" / "ca.crt") as users,
    ):
        _refuses(users, "IP address mismatch")


def test_client_refuses_a_node_of_another_ca(tmp_path: Path) -> None:
    """A node whose certificate another CA has signed is unreachable, also without `ca`."""
    mount_for_localhost(tmp_path / "secret")
    (tmp_path / "other").write_bytes(CertificateAuthority("others").pem)
    with _nodes(tmp_path) as cluster:
        for ca in (tmp_path / "other", None):
            with QueryableTopic(cluster.addresses, ca=ca) as users:
                _refuses(users, "certificate verify failed")


def test_late_handshake_leaves_no_connection() -> None:
    """A connection whose handshake is not over by the deadline is closed at once, while the client stays open."""
    asked, closed = threading.Event(), threading.Event()

    def never_shake_hands(connection: socket.socket) -> None:
        while connection.recv(4096):
            asked.set()
        closed.set()

    async def read(url: str) -> None:
        async with AsyncQueryableTopic(url, verify=False) as users:
            with pytest.raises((Unreachable, DeadlineExceeded)):
                await users.get("key-1", deadline_ms=500)
            assert asked.is_set()
            assert await asyncio.to_thread(closed.wait, 10)

    gc.disable()  # it would close the connection, with a warning
    try:
        listener = socket.create_server(("127.0.0.1", 0))
        with SocketServer(listener, never_shake_hands):
            asyncio.run(read(f"https://127.0.0.1:{listener.getsockname()[1]}"))
    finally:
        gc.enable()


def test_client_names_the_file_that_it_cannot_use(tmp_path: Path) -> None:
    """Files that are missing, that are not PEM, or that need each other are refused by name."""
    files = _client_files(tmp_path, CertificateAuthority())
    (tmp_path / "text").write_text("text")
    for wrong, message in (
        ({"ca": tmp_path / "missing"}, r"ca: .*missing cannot be used"),
        ({"ca": tmp_path / "text"}, r"ca: .*text cannot be used"),
        ({"cert": files["cert"]}, r"cert, key: a client certificate needs both"),
        ({"cert": files["cert"], "key": tmp_path / "text"}, r"cert, key: .* cannot be used"),
        ({"ca": files["ca"], "verify": False}, r"verify: goes without ca"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            QueryableTopic("https://127.0.0.1:1", **wrong)


def test_command_line_takes_flags_and_variables(tmp_path: Path) -> None:
    """`qtopic get` reads with --ca, --cert and --key, or with variables, and says why without."""
    files = _client_files(tmp_path, mount_for_localhost(tmp_path / "secret"))
    flags = [part for name, file in files.items() for part in (f"--{name}", str(file))]
    variables = {f"QTOPIC_{name.upper()}": str(file) for name, file in files.items()}
    with _nodes(tmp_path, "require") as cluster:
        get = ["get", "key-1", "--url", cluster.addresses[0]]
        run = CliRunner()
        for arguments, environ in ((get + flags, {}), (get, variables)):
            done = run.invoke(qtopic, arguments, env=environ)
            assert (done.exit_code, done.stdout) == (0, '{"n":1}\n'), done.output
        without = run.invoke(qtopic, [*get, "--ca", str(files["ca"])])
        assert without.exit_code != 0
        assert "certificate" in without.output
