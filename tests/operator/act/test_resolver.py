"""Test which names are looked up for a broker's host, and which name TLS verifies."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from queryable_operator.act.resolver import NamespaceLoop, own_search_path, search_path

IN_THE_CLUSTER = ("queryable-topics.svc.cluster.local", "svc.cluster.local", "cluster.local", "host.example")


@pytest.mark.parametrize(
    ("host", "own", "names"),
    [
        (
            "kafka",
            IN_THE_CLUSTER,
            [
                "kafka.shop.svc.cluster.local.",
                "kafka.svc.cluster.local.",
                "kafka.cluster.local.",
                "kafka.host.example.",
                "kafka.",
            ],
        ),
        (
            "kafka.shop",
            ("example.com",),
            [
                "kafka.shop.shop.svc.cluster.local.",
                "kafka.shop.svc.cluster.local.",
                "kafka.shop.cluster.local.",
                "kafka.shop",
            ],
        ),
        ("b-1.kafka.eu.example.com", (), ["b-1.kafka.eu.example.com.shop.svc.cluster.local."]),
        ("b-1.kafka.eu.aws.example.com", IN_THE_CLUSTER, ["b-1.kafka.eu.aws.example.com."]),
    ],
)
def test_host_is_looked_up_as_a_pod_does(host: str, own: Sequence[str], names: list[str]) -> None:
    """The resource's namespace comes first, unless the name has five dots; the operator's own namespace never."""
    looked_up = search_path("shop", "cluster.local", own).names(host)
    assert looked_up[: len(names)] == names
    assert not any("queryable-topics" in name for name in looked_up)


@pytest.mark.parametrize("host", ["10.0.0.1", "::1", "kafka.example.com.", "localhost"])
def test_complete_name_is_looked_up_as_it_is(host: str) -> None:
    """Addresses, names that end in a dot, and localhost are looked up unchanged."""
    assert search_path("shop", "cluster.local", IN_THE_CLUSTER).names(host) == [host]


def test_operator_outside_of_the_cluster_looks_the_name_up_as_written_at_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An operator outside of the cluster finally looks the name up as written, which its own resolver may know."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()

        def resolve(host: str, *options: Any) -> Any:
            if host == "kafka":
                return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address)]
            raise socket.gaierror(socket.EAI_NONAME, "unknown")

        monkeypatch.setattr("queryable_operator.act.resolver.socket.getaddrinfo", resolve)
        path = search_path("shop", "cluster.local", ("example.com",))
        with asyncio.Runner(loop_factory=lambda: NamespaceLoop(path)) as runner:
            assert runner.run(_peer("kafka", address[1])) == address


async def _peer(host: str, port: int) -> Any:
    _, writer = await asyncio.open_connection(host, port)
    address = writer.get_extra_info("peername")
    writer.close()
    await writer.wait_closed()
    return address


def test_tls_verifies_the_name_as_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker's certificate has the name that clients use, not the one in the cluster's DNS."""
    openssl = shutil.which("openssl") or pytest.skip("there is no openssl to make a certificate with")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    make = [
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=kafka",
        "-addext",
    ]
    files = ["subjectAltName=DNS:kafka", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([openssl, *make, *files], check=True, capture_output=True, timeout=60)
    serves = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serves.load_cert_chain(certificate, key)
    trusts = ssl.create_default_context(cafile=str(certificate))

    def resolve(host: str, port: int, *options: Any) -> Any:
        if host != "kafka.shop.svc.cluster.local.":
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    async def connect() -> None:
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=serves)
        async with server:
            port = server.sockets[0].getsockname()[1]
            monkeypatch.setattr("queryable_operator.act.resolver.socket.getaddrinfo", resolve)
            _, writer = await asyncio.open_connection("kafka", port, ssl=trusts)
            writer.close()
            with pytest.raises(ssl.SSLCertVerificationError):
                await asyncio.open_connection("kafka.shop", port, ssl=trusts)

    path = search_path("shop", "cluster.local", IN_THE_CLUSTER)
    with asyncio.Runner(loop_factory=lambda: NamespaceLoop(path)) as runner:
        runner.run(connect())


@pytest.mark.parametrize("host", ["a..b", "a" * 70])
def test_impossible_name_is_unknown(host: str) -> None:
    """A name that no resolver accepts is an unknown host, and no defect."""
    path = search_path("shop", "cluster.local", IN_THE_CLUSTER)
    with asyncio.Runner(loop_factory=lambda: NamespaceLoop(path)) as runner, pytest.raises(socket.gaierror):
        runner.run(_peer(host, 1))


def test_search_path_is_read_from_the_resolvers_file(tmp_path: Path) -> None:
    """The last line wins. Without a file the search path is empty."""
    file = tmp_path / "resolv.conf"
    assert own_search_path(file) == ()
    file.write_text(
        "nameserver 10.0.0.1\nsearch old.example\nsearch a.svc.cluster.local. svc.cluster.local\n"
    )
    assert own_search_path(file) == ("a.svc.cluster.local", "svc.cluster.local")
