"""Test `qtopic run` as a process: what it refuses, and that it leaves nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import yaml

from tests.integration.system import resource
from tests.support.processes import command_and_environment
from tests.support.waiting import eventually

COMMAND = [sys.executable, "-m", "queryable_app.cli", "run"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "topic.yaml"
    path.write_text(yaml.safe_dump(resource("users", "127.0.0.1:9")))
    return path


def refusal(*options: object, **environ: str) -> tuple[int, str]:
    """Return the exit code and standard error of a run that is refused."""
    done = subprocess.run(
        [*COMMAND, *map(str, options)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environ},
    )
    return done.returncode, done.stderr.strip()


@contextmanager
def started(*options: object, log: Path, **environ: str) -> Iterator[subprocess.Popen[str]]:
    with log.open("w") as out:
        process = subprocess.Popen(
            [*COMMAND, *map(str, options)],
            stdout=out,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **environ},
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(15)


def left_behind(data: Path) -> list[psutil.Process]:
    """Return the processes that have the directory in their command or their environment."""
    return [
        process
        for process in psutil.process_iter()
        if str(data) in command_and_environment(process) and process.pid != os.getpid()
    ]


def test_taken_port_is_reported(file: Path) -> None:
    """The sentence has the port and the option that changes it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        code, text = refusal("-f", file, "--port", port)

    assert (code, text) == (
        5,
        f"port {port} is taken: stop what listens there, or choose another one with --port",
    )


def test_missing_java_is_reported(file: Path) -> None:
    """Without Java, one sentence names the version that is needed and JAVA_HOME."""
    code, text = refusal("-f", file, "--port", 0, JAVA_HOME="/nowhere")

    assert code == 5
    assert text.count("\n") == 0
    assert "Java 17 or newer is needed" in text
    assert "JAVA_HOME" in text


def test_low_limit_of_open_files_is_reported(file: Path) -> None:
    """Before anything starts, one sentence has the limit and the need."""
    command = [*COMMAND, "-f", str(file), "--port", "0"]
    done = subprocess.run(
        ["sh", "-c", 'ulimit -n 256 && exec "$@"', "sh", *command], capture_output=True, text=True, timeout=60
    )

    assert done.returncode == 5
    assert done.stderr.startswith("the limit of open files (RLIMIT_NOFILE) is 256, and Spark needs ")
    assert done.stderr.strip().count("\n") == 0


def test_invalid_file_starts_nothing(tmp_path: Path) -> None:
    """The message names the mistake, and the exit code is that of an invalid file."""
    file = tmp_path / "topic.yaml"
    file.write_text(yaml.safe_dump(resource("users", "127.0.0.1:9", standbyReplica=1)))

    code, text = refusal("-f", file, "--data", tmp_path / "data")

    assert (code, text) == (2, f"{file}: spec.standbyReplica: unknown field; did you mean standbyReplicas?")
    assert not (tmp_path / "data").exists()


def test_wait_for_kafka_has_a_deadline(file: Path) -> None:
    """After the deadline, one sentence names the address."""
    code, text = refusal("-f", file, "--port", 0, "--kafka", "file", "--topic-wait", "1s")

    assert (code, text) == (
        4,
        "Kafka cannot be reached at 127.0.0.1:9: start it, or correct the address",
    )


def test_file_that_needs_a_secret_is_refused(tmp_path: Path) -> None:
    """Without --secrets a run has no Secret: it refuses the file with advice, and does not start without the settings."""
    file = tmp_path / "topic.yaml"
    document = resource("users", "127.0.0.1:9")
    document["spec"]["kafka"]["secretRef"] = {"name": "kafka-client"}
    file.write_text(yaml.safe_dump(document))

    code, text = refusal("-f", file, "--port", 0, "--kafka", "file")

    assert code == 2
    assert "into DIR/kafka-client, and run with --secrets DIR" in text


def test_second_run_in_a_directory_is_refused(file: Path, tmp_path: Path) -> None:
    """The second run is refused at once, and the first continues."""
    data, log = tmp_path / "data", tmp_path / "run.log"
    options = ("-f", file, "--data", data, "--port", 0, "--kafka", "file")
    with started(*options, log=log) as first:
        eventually("the first run waits", lambda: "Waiting" in log.read_text())

        code, text = refusal(*options)

        assert (code, text) == (5, f"another qtopic run uses {data}: stop it, or give another --data")
        assert first.poll() is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
@pytest.mark.parametrize(
    "moment",
    ["Starting Kafka", "kafka/broker.log", "Kafka answers", "Waiting for the nodes", "serve.log"],
)
def test_run_stopped_during_its_start_leaves_no_process(
    file: Path, tmp_path: Path, moment: str, number: signal.Signals
) -> None:
    """A signal at any moment of the start ends the run within seconds, with all that it has started."""
    data, log = tmp_path / "data", tmp_path / "run.log"

    def reached() -> bool:
        return moment in log.read_text() or bool(list(data.glob(f"**/*{moment.rpartition('/')[2]}")))

    with started("-f", file, "--data", data, "--port", 0, log=log) as run:
        eventually(moment, reached)
        run.send_signal(number)

        assert run.wait(15) == 0, log.read_text()
    assert left_behind(data) == []
    assert not (data / "run.json").exists()


def test_temporary_directory_is_removed_at_the_end(file: Path, tmp_path: Path) -> None:
    """A run without --data leaves nothing on disk."""
    log, temporary = tmp_path / "run.log", tmp_path / "tmp"
    temporary.mkdir()

    with started("-f", file, "--port", 0, "--kafka", "file", log=log, TMPDIR=str(temporary)) as run:
        eventually("the run waits", lambda: "Waiting" in log.read_text())
        assert list(temporary.glob("qtopic-*"))
        run.send_signal(signal.SIGINT)
        assert run.wait(15) == 0

    assert list(temporary.iterdir()) == []
