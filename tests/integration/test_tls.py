"""Test `qtopic run` with TLS: two nodes with their own Kafka and Spark, read by the command line."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
from pathlib import Path

from tests.integration.system import resource, running
from tests.support.certificates import CertificateAuthority, mount, mount_for_localhost
from tests.support.waiting import eventually

SPEC = {"secretRef": {"name": "users-tls"}}


def qtopic(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "queryable_app.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_a_run_serves_https(tmp_path: Path) -> None:
    """A record is produced and read on each node of a run over HTTPS, also after the certificate has changed."""
    secret = tmp_path / "secrets" / "users-tls"
    ca = mount_for_localhost(secret)
    data = tmp_path / "run"
    view = resource("notes", "elsewhere:9092", tls=SPEC, replicas=2)
    options = ("--kafka", "embedded", "--port", "0", "--secrets", str(secret.parent))
    with running(view, data, *options, nodes=2) as system:
        urls = [node["url"] for node in system.described()["nodes"]]
        assert all(url.startswith("https://127.0.0.1:") for url in urls)
        written = qtopic("produce", "--data", system.data, "--json", "greeting", '"hello"')
        assert written.returncode == 0, written.stderr
        position = json.loads(written.stdout.splitlines()[-1])["position"]
        read = ("greeting", "--min-position", position, "--deadline-ms", 60_000)
        for where in (["--data", system.data], ["--url", urls[1], "--ca", secret / "ca.crt"]):
            done = qtopic("get", *read, *where)
            assert (done.returncode, done.stdout) == (0, '"hello"\n'), done.stderr
        assert qtopic("get", *read, "--url", urls[0]).returncode == 4  # its CA is not the system's

        certificate, key = ca.sign()
        mount(secret, ca.pem, certificate, key)
        for url in urls:
            address = ("127.0.0.1", int(url.rpartition(":")[2]))
            eventually(
                "the new certificate is shown",
                lambda address=address: (
                    ssl.get_server_certificate(address).split() == certificate.decode().split()
                ),  # type: ignore[misc]
            )
        assert qtopic("get", *read, "--data", system.data).stdout == '"hello"\n'
        peers = [peer for node in range(2) for peer in system.status(node)["peers"]]
        assert [peer["suspect"] for peer in peers] == [False, False]


def test_a_run_refuses_what_it_cannot_use(tmp_path: Path) -> None:
    """Without --secrets, and with a certificate for another host, `qtopic run` says what to do before it starts anything."""
    file = tmp_path / "view.json"
    file.write_text(json.dumps(resource("notes", "elsewhere:9092", tls=SPEC)))
    run = ("run", "-f", file, "--port", 0, "--data", tmp_path / "data")
    done = qtopic(*run)
    assert (done.returncode, "--secrets DIR" in done.stderr) == (2, True), done.stderr
    ca = CertificateAuthority()
    mount(tmp_path / "secrets" / "users-tls", ca.pem, *ca.sign(["users.example"]))
    done = qtopic(*run, "--secrets", tmp_path / "secrets")
    assert (done.returncode, "valid for 127.0.0.1" in done.stderr) == (2, True), done.stderr
