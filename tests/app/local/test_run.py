"""`qtopic run` as a process: what it refuses, and that it leaves nothing behind whenever it ends."""

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
    """Exit code and what is said on standard error."""
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
    """Processes that have the directory in their command or their environment."""
    return [
        process
        for process in psutil.process_iter()
        if str(data) in command_and_environment(process) and process.pid != os.getpid()
    ]


def test_a_taken_port_is_named(file: Path) -> None:
    """One sentence with the port and the option that changes it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        code, said = refusal("-f", file, "--port", port)

    assert (code, said) == (
        5,
        f"port {port} is taken: stop what listens there, or choose another one with --port",
    )


def test_without_java_one_sentence_says_what_to_do(file: Path) -> None:
    """The sentence names Java and JAVA_HOME."""
    code, said = refusal("-f", file, "--port", 0, JAVA_HOME="/nowhere")

    assert code == 5
    assert said.count("\n") == 0
    assert "Java 17 or newer is needed" in said
    assert "JAVA_HOME" in said


def test_a_limit_of_descriptors_that_is_too_low_is_named(file: Path) -> None:
    """One sentence with the limit and what is needed, before anything is started."""
    command = [*COMMAND, "-f", str(file), "--port", "0"]
    done = subprocess.run(
        ["sh", "-c", 'ulimit -n 256 && exec "$@"', "sh", *command], capture_output=True, text=True, timeout=60
    )

    assert done.returncode == 5
    assert done.stderr.startswith("the limit of open files (RLIMIT_NOFILE) is 256, and Spark needs ")
    assert done.stderr.strip().count("\n") == 0


def test_a_file_with_a_mistake_starts_nothing(tmp_path: Path) -> None:
    """The mistake is named, and the exit code says that the file is not valid."""
    file = tmp_path / "topic.yaml"
    file.write_text(yaml.safe_dump(resource("users", "127.0.0.1:9", standbyReplica=1)))

    code, said = refusal("-f", file, "--data", tmp_path / "data")

    assert (code, said) == (2, f"{file}: spec.standbyReplica: unknown field; did you mean standbyReplicas?")
    assert not (tmp_path / "data").exists()


def test_a_kafka_that_is_not_there_is_not_waited_for_for_ever(file: Path) -> None:
    """After the deadline one sentence names the address."""
    code, said = refusal("-f", file, "--port", 0, "--kafka", "file", "--topic-wait", "1s")

    assert (code, said) == (
        4,
        "Kafka cannot be reached at 127.0.0.1:9: start it, or correct the address",
    )


def test_a_secret_cannot_be_read_on_one_machine(tmp_path: Path) -> None:
    """A file whose Kafka needs a Secret is refused, with advice, and not run without it."""
    file = tmp_path / "topic.yaml"
    document = resource("users", "127.0.0.1:9")
    document["spec"]["kafka"]["secretRef"] = {"name": "kafka-client"}
    file.write_text(yaml.safe_dump(document))

    code, said = refusal("-f", file, "--port", 0, "--kafka", "file")

    assert code == 5
    assert "give the settings in spec.kafka.config" in said


def test_two_runs_do_not_share_a_directory(file: Path, tmp_path: Path) -> None:
    """The second one is refused at once, and the first goes on."""
    data, log = tmp_path / "data", tmp_path / "run.log"
    options = ("-f", file, "--data", data, "--port", 0, "--kafka", "file")
    with started(*options, log=log) as first:
        eventually("the first one waits", lambda: "Waiting" in log.read_text())

        code, said = refusal(*options)

        assert (code, said) == (5, f"another qtopic run uses {data}: stop it, or give another --data")
        assert first.poll() is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
@pytest.mark.parametrize(
    "moment",
    ["Starting Kafka", "kafka/broker.log", "Kafka answers", "Waiting for the nodes", "serve.log"],
)
def test_stopped_during_its_start_it_leaves_no_process(
    file: Path, tmp_path: Path, moment: str, number: signal.Signals
) -> None:
    """Whatever it was doing, it ends within seconds, with everything it has started."""
    data, log = tmp_path / "data", tmp_path / "run.log"

    def reached() -> bool:
        return moment in log.read_text() or bool(list(data.glob(f"**/*{moment.rpartition('/')[2]}")))

    with started("-f", file, "--data", data, "--port", 0, log=log) as run:
        eventually(moment, reached)
        run.send_signal(number)

        assert run.wait(15) == 0, log.read_text()
    assert left_behind(data) == []
    assert not (data / "run.json").exists()


def test_a_directory_of_its_own_is_gone_at_the_end(file: Path, tmp_path: Path) -> None:
    """Without --data nothing is left on the disk."""
    log, temporary = tmp_path / "run.log", tmp_path / "tmp"
    temporary.mkdir()

    with started("-f", file, "--port", 0, "--kafka", "file", log=log, TMPDIR=str(temporary)) as run:
        eventually("it waits", lambda: "Waiting" in log.read_text())
        assert list(temporary.glob("qtopic-*"))
        run.send_signal(signal.SIGINT)
        assert run.wait(15) == 0

    assert list(temporary.iterdir()) == []
