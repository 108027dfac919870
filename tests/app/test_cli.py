"""Test the commands of `qtopic` that need no run."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from queryable_app.client.keys import in_request, record_key
from queryable_app.commands.group import qtopic as commands
from queryable_app.commands.view import typed_key
from queryable_app.errors import Failure, Reason
from queryable_app.platform.processes import free_ports
from queryable_app.wire.serde import key_codec

COMMANDS = ["explain", "run", "get", "status", "produce", "scale", "standby", "top", "windows"]


def qtopic(*arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(commands, arguments, input=stdin)


@contextmanager
def node_that_answers(status: int, body: bytes) -> Iterator[str]:
    """Run the only node of a view, which gives every read the same response."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/v1/placement":
                self.answer(200, json.dumps(placement).encode())
            else:
                self.answer(status, body)

        def answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Qt-Application", "tests.users.r1")
            self.send_header("Qt-Partition", "3")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        url = f"http://127.0.0.1:{server.server_port}"
        placement = {
            "epoch": 1,
            "applicationId": "tests.users.r1",
            "partitioner": "murmur2",
            "keyFormat": "string",
            "partitions": [{"partition": 0, "addresses": [url], "hydrating": []}],
        }
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield url
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples_options_and_exit_codes(command: str) -> None:
    """The help of a command has an example, a text for every option, and the exit codes."""
    text = qtopic(command, "--help").output
    found = commands.get_command(click.Context(commands), command)

    assert f"  qtopic {command}" in text
    assert "Exit codes:" in text
    assert found is not None
    assert all(o.help for o in found.params if isinstance(o, click.Option))


def test_help_lists_the_commands() -> None:
    """`qtopic --help` lists all commands."""
    text = qtopic("--help").output

    assert all(f"  {command} " in text for command in COMMANDS)


def test_ctrl_c_during_imports_prints_no_traceback() -> None:
    """The process ends by SIGINT, and prints nothing."""
    command = [sys.executable, "-X", "importtime", "-m", "queryable_app.cli", "--help"]
    # A full pipe stops the process in the middle of its imports.
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, pipesize=4096) as process:
        assert process.stderr is not None
        while not (line := process.stderr.readline()).rstrip().endswith(b" click"):
            assert line
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=20)

    assert process.returncode == -signal.SIGINT
    assert (stdout, b"Traceback" in stderr) == (b"", False)


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (Reason.KEY_NOT_FOUND, 1),
        (Reason.NO_SUCH_RESOURCE, 2),
        (Reason.INVALID_REQUEST, 2),
        (Reason.WRONG_OWNER, 3),
        (Reason.OVERLOADED, 3),
        (Reason.NOT_AVAILABLE, 3),
        (Reason.NOT_FRESH_ENOUGH, 3),
        (Reason.DEADLINE_EXCEEDED, 3),
        (Reason.INTERNAL, 5),
    ],
    ids=lambda value: value.slug if isinstance(value, Reason) else None,
)
def test_every_reason_has_an_exit_code(reason: Reason, code: int) -> None:
    """The exit code tells a missing key from missing data; standard error has the node's detail and advice."""
    body = json.dumps(Failure(reason, "what happened", "what to do").problem()).encode()
    with node_that_answers(reason.status, body) as url:
        result = qtopic("get", "k", "--url", url)

    assert (result.exit_code, result.stdout) == (code, "")
    assert "what happened" in result.stderr
    assert "what to do" in result.stderr


def test_get_prints_the_stored_bytes() -> None:
    """`qtopic get` prints the value byte for byte, and a line break."""
    with node_that_answers(200, '{"grüße":  1}'.encode()) as url:
        assert qtopic("get", "k", "--url", url).stdout == '{"grüße":  1}\n'


def test_get_tries_the_next_url_after_a_refused_connection() -> None:
    """`qtopic get` reads from the next URL if the first one refuses the connection."""
    unused = f"http://127.0.0.1:{free_ports(1)[0]}"
    with node_that_answers(200, b"1") as url:
        assert qtopic("get", "k", "--url", unused, "--url", url).stdout == "1\n"


@pytest.mark.parametrize("command", [("get", "k"), ("status",)], ids=lambda c: c[0])
def test_unreachable_node_is_exit_code_4(command: tuple[str, ...]) -> None:
    """If no node answers, the exit code is 4 and the message says what to do."""
    url = f"http://127.0.0.1:{free_ports(1)[0]}"
    result = qtopic(*command, "--url", url)

    assert result.exit_code == 4
    assert "qtopic run" in result.stderr


@pytest.mark.parametrize("command", [("get", "k"), ("status",), ("produce", "k", "1")], ids=lambda c: c[0])
def test_directory_without_a_run_is_exit_code_4(tmp_path: Path, command: tuple[str, ...]) -> None:
    """If the data directory has no run, the exit code is 4 and the message names the directory."""
    result = qtopic(*command, "--data", str(tmp_path))

    assert result.exit_code == 4
    assert str(tmp_path) in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("get",),
        ("get", "k", "--consistency", "sometimes"),
        ("get", "k", "--url", "localhost:8080"),
        ("produce", "k"),
        ("produce", "k", "v", "--delete"),
        ("produce", "--delete"),
        ("produce", "k", "not json", "--topic", "t", "--kafka", "127.0.0.1:9"),
        ("run",),
        ("run", "-f", "/nowhere.yaml"),
        ("run", "-f", "x", "--kafka", "localhost"),
        ("run", "-f", "x", "--nodes", "0"),
        ("run", "-f", "x", "--topic-wait", "soon"),
    ],
    ids=" ".join,
)
def test_invalid_usage_is_exit_code_2(arguments: tuple[str, ...]) -> None:
    """Invalid options, files and values end with exit code 2 and a message on standard error."""
    result = qtopic(*arguments)

    assert result.exit_code == 2
    assert result.stderr.strip()


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("user-1", "user-1"),
        ("a/b", "a%2Fb"),
        ("..", "%2E%2E"),
        (".", "%2E"),
        ("a.b", "a.b"),
        ("?x#y", "%3Fx%23y"),
        ("%2F", "%252F"),
        ("ü", "%C3%BC"),
        ("\udcff", "%FF"),
        ("", ""),
    ],
)
def test_key_is_encoded_in_the_path(key: str, path: str) -> None:
    """No character of a typed key has a meaning in the path, and bytes of a terminal that are no UTF-8 stay the same."""
    codec = key_codec("string")

    assert in_request([record_key(typed_key(key), codec)], codec) == ([path], [])
