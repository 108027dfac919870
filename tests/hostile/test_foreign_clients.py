"""Test that common HTTP clients, with their defaults, get the answers that a plain socket gets.

Each client is given the same list of requests, and prints the status and the digest of the body of each answer. Between
them they offer h2c upgrades, keep connections, send bodies in chunks, wait for 100 Continue, and send many requests at once.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from queryable_app.policy import overload
from tests.support.served import Served
from tests.support.wire import request, wire

CLIENTS: Final = Path(__file__).parent / "clients"
MULTI_GET: Final = (
    "/v1/multi-get?deadline-ms=30000"  # a large body takes longer than the default on a busy machine
)


class Step(NamedTuple):
    method: str
    target: str
    body: Path | None = None
    how: str = "-"

    def __str__(self) -> str:
        return f"{self.method} {self.target} {self.body or '-'} {self.how}"


@pytest.fixture(autouse=True)
def no_overload(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let requests that are sent at once wait on a busy machine, where the node would refuse some of them."""
    monkeypatch.setattr(overload, "WAITING_FEW", 1_000)


@pytest.fixture
def steps(tmp_path: Path) -> list[Step]:
    small, large, broken = (tmp_path / name for name in ("small.json", "large.json", "broken.json"))
    small.write_text(json.dumps({"keys": ["key-000001", "missing"]}))
    large.write_text(json.dumps({"keys": [f"key-{n % 1000:06}" for n in range(1000)]}) + " " * 2_000_000)
    broken.write_text("DELETE /v1/records/key-000001 HTTP/1.1\r\nHost: x\r\n\r\n")
    return [
        Step("GET", "/v1/keys/key-000001"),
        Step("GET", "/v1/keys/missing%20%2F"),
        Step("HEAD", "/v1/keys/key-000002"),
        Step("HEAD", "/v1/scan"),
        Step("POST", MULTI_GET, small),
        Step("POST", MULTI_GET, broken),
        Step("POST", MULTI_GET, large),
        Step("POST", MULTI_GET, small, "chunked"),
        Step("POST", MULTI_GET, large, "chunked"),
        Step("POST", MULTI_GET, small, "expect"),
        Step("POST", MULTI_GET, large, "expect"),
        Step("GET", "/v1/count?deadline-ms=30000"),
        Step("GET", "/v1/scan?limit=1000&deadline-ms=30000"),
        *(Step("GET", f"/v1/keys/key-{n:06}", how="together") for n in range(20)),
        *(Step("POST", MULTI_GET, small, "together") for _ in range(20)),
    ]


def as_line(status: int, body: bytes) -> str:
    return f"{status} {hashlib.sha256(body).hexdigest()}"


def expected(node: Served, steps: Sequence[Step]) -> list[str]:
    """Return what a socket gets that sends only the requests."""
    lines = []
    for step in steps:
        body = step.body.read_bytes() if step.body else None
        with wire(node.port) as connection:
            connection.send(request(step.method.encode(), step.target.encode(), body=body))
            answer = connection.answer(head=step.method == "HEAD")
        lines.append(as_line(answer.status, answer.body))
    return lines


def program(name: str, why: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed: {why}")
    return found


def lines_of(
    node: Served, steps: Sequence[Step], directory: Path, *command: str, **environment: str
) -> list[str]:
    file = directory / "steps"
    file.write_text("".join(f"{step}\n" for step in steps))
    run = subprocess.run(
        [*command, node.url, str(file)],
        capture_output=True,
        text=True,
        timeout=170,
        env={**os.environ, "NO_PROXY": "127.0.0.1", **environment},
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


def test_java(node: Served, steps: list[Step], tmp_path: Path) -> None:
    """The JDK's HttpClient, which offers h2c with its first request on each connection, gets every answer."""
    java = program("java", "a JDK of 17 or newer has the client")
    modules = subprocess.run([java, "--list-modules"], capture_output=True, text=True, timeout=60, check=True)
    if "jdk.compiler" not in modules.stdout:
        pytest.skip("java is a JRE: a JDK is needed to run a source file")
    command = (java, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", str(CLIENTS / "Client.java"))
    assert lines_of(node, steps, tmp_path, *command) == expected(node, steps)


def test_go(node: Served, steps: list[Step], tmp_path: Path) -> None:
    """Go's net/http gets every answer."""
    go = program("go", "a Go toolchain builds the client")
    binary = str(tmp_path / "client")
    offline = {"GOFLAGS": "-mod=mod", "GOTOOLCHAIN": "local", "GOPROXY": "off", "CGO_ENABLED": "0"}
    subprocess.run(
        [go, "build", "-o", binary, str(CLIENTS / "client.go")],
        env={**os.environ, **offline},
        cwd=tmp_path,
        timeout=170,
        check=True,
    )
    assert lines_of(node, steps, tmp_path, binary) == expected(node, steps)


def test_node(node: Served, steps: list[Step], tmp_path: Path) -> None:
    """Node.js' fetch and its module http get every answer."""
    javascript = program("node", "Node.js 18 or newer runs the client")
    assert lines_of(node, steps, tmp_path, javascript, str(CLIENTS / "client.mjs")) == expected(node, steps)


@pytest.mark.parametrize("version", ["--http1.1", "--http2", "--http1.0"])
def test_curl(node: Served, steps: list[Step], tmp_path: Path, version: str) -> None:
    """curl gets every answer on one persistent connection; with --http2 it offers h2c."""
    curl = program("curl", "it is the client")
    steps = [step for step in steps if version != "--http1.0" or step.how not in ("chunked", "expect")]
    command = [curl, "--silent", "--show-error", "--max-time", "30", "--noproxy", "*"]
    outputs = [tmp_path / f"answer-{number}" for number in range(len(steps))]
    for number, (step, output) in enumerate(zip(steps, outputs, strict=True)):
        command += ["--next"] if number else []
        command += [version, "--output", str(output), "--write-out", "%{http_code}\\n"]
        command += ["--head"] if step.method == "HEAD" else []
        command += ["--header", "Transfer-Encoding: chunked"] if step.how == "chunked" else []
        command += ["--header", "Expect: 100-continue"] if step.how == "expect" else []
        command += ["--data-binary", f"@{step.body}"] if step.body else []
        command.append(node.url + step.target)
    run = subprocess.run(command, capture_output=True, text=True, timeout=170, check=False)
    assert run.returncode == 0, run.stderr
    bodies = [
        b"" if step.method == "HEAD" else output.read_bytes()
        for step, output in zip(steps, outputs, strict=True)
    ]
    lines = [as_line(int(status), body) for status, body in zip(run.stdout.split(), bodies, strict=True)]
    assert lines == expected(node, steps)


def test_curl_with_prior_knowledge_of_http_2_is_refused(node: Served) -> None:
    """A client that speaks HTTP/2 without an upgrade fails at once, and does not hang."""
    curl = program("curl", "it is the client")
    run = subprocess.run(
        [curl, "--silent", "--http2-prior-knowledge", "--max-time", "20", node.url + "/livez"],
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert run.returncode not in (0, 28)  # 28: it timed out
