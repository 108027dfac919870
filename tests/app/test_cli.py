"""`qtopic` as a person and a script meet it, where no run is needed."""

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

from queryable_app.commands.group import qtopic as commands
from queryable_app.commands.node_client import path_of
from queryable_app.errors import Failure, Reason
from queryable_app.local.processes import free_ports

COMMANDS = ["run", "get", "status", "produce", "scale", "standby"]


def qtopic(*arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(commands, arguments, input=stdin)


@contextmanager
def node_that_answers(status: int, body: bytes) -> Iterator[str]:
    """A server that gives every request the same answer."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Qt-Partition", "3")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("command", COMMANDS)
def test_help_teaches(command: str) -> None:
    """What it does, an example, every option explained, and the exit codes."""
    said = qtopic(command, "--help").output
    found = commands.get_command(click.Context(commands), command)

    assert f"  qtopic {command}" in said
    assert "Exit codes:" in said
    assert found is not None
    assert all(o.help for o in found.params if isinstance(o, click.Option))


def test_the_commands_are_listed() -> None:
    """`qtopic` alone says what there is."""
    said = qtopic("--help").output

    assert all(f"  {command} " in said for command in COMMANDS)


def test_ctrl_c_while_it_starts_is_quiet() -> None:
    """The process ends by the signal, which a shell calls 130, and says nothing."""
    command = [sys.executable, "-X", "importtime", "-m", "queryable_app.cli", "--help"]
    # A pipe that nobody empties holds the process in the middle of its imports.
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
def test_every_failure_has_an_exit_code(reason: Reason, code: int) -> None:
    """Scripts can tell a missing key from missing data; the node's own words are on standard error."""
    body = json.dumps(Failure(reason, "what happened", "what to do").problem()).encode()
    with node_that_answers(reason.status, body) as url:
        result = qtopic("get", "k", "--url", url)

    assert (result.exit_code, result.stdout) == (code, "")
    assert "what happened" in result.stderr
    assert "what to do" in result.stderr


def test_a_value_is_printed_as_it_is() -> None:
    """Bytes for bytes, and a line break for the terminal."""
    with node_that_answers(200, '{"grüße":  1}'.encode()) as url:
        assert qtopic("get", "k", "--url", url).stdout == '{"grüße":  1}\n'


def test_the_next_node_is_asked_when_one_is_away() -> None:
    """A refused connection is no answer while another node is left."""
    nobody = f"http://127.0.0.1:{free_ports(1)[0]}"
    with node_that_answers(200, b"1") as url:
        assert qtopic("get", "k", "--url", nobody, "--url", url).stdout == "1\n"


@pytest.mark.parametrize("command", [("get", "k"), ("status",)], ids=lambda c: c[0])
def test_nobody_answers(command: tuple[str, ...]) -> None:
    """Exit code 4, and what to do."""
    url = f"http://127.0.0.1:{free_ports(1)[0]}"
    result = qtopic(*command, "--url", url)

    assert result.exit_code == 4
    assert "qtopic run" in result.stderr


@pytest.mark.parametrize("command", [("get", "k"), ("status",), ("produce", "k", "1")], ids=lambda c: c[0])
def test_no_run_answers(tmp_path: Path, command: tuple[str, ...]) -> None:
    """A directory without a run is named, with exit code 4."""
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
def test_what_is_not_valid_is_exit_code_2(arguments: tuple[str, ...]) -> None:
    """Usage, files and values that cannot be meant; something is said on standard error."""
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
def test_a_key_in_a_path(key: str, path: str) -> None:
    """No character of a key means anything to a server, and bytes of a terminal that are no UTF-8 stay what they are."""
    assert path_of(key) == path
