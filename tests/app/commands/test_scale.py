"""Test `qtopic scale` and `qtopic standby` with a run that is only a data directory."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from queryable_app.commands import scale
from queryable_app.commands.group import qtopic as commands
from queryable_app.local.data_directory import write_file
from queryable_app.local.desired_scale import DESIRED_SCALE_FILE
from tests.app.test_cli import node_that_answers
from tests.support.waiting import eventually

THREE = {"epoch": 4, "settled": True, "nodes": 3, "standby": 1, "toBuild": 0, "toLetGo": 0}


def describe(data: Path, **placement: Any) -> None:
    write_file(data / "run.json", {"kafka": "", "nodes": [], "placement": {**THREE, **placement}})


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return the directory of a run with three nodes and a standby replica of each partition."""
    describe(tmp_path)
    return tmp_path


def qtopic(*arguments: object) -> Result:
    return CliRunner().invoke(commands, [str(a) for a in arguments])


def desired(data: Path) -> Any:
    return json.loads((data / DESIRED_SCALE_FILE).read_text())


class Polls:
    """Stand in for the module `time` of a command: each pause between two polls is the next of these actions."""

    def __init__(self, *actions: Callable[[], object]) -> None:
        self._actions = iter(actions)

    def sleep(self, seconds: float) -> None:
        next(self._actions)()

    def monotonic(self) -> float:
        return 0.0


def run_follows(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the run follow the desired scale at the first poll, and settle at the second."""
    polls = Polls(
        lambda: describe(data, **desired(data), epoch=5, settled=False, toBuild=2, toLetGo=2),
        lambda: describe(data, **desired(data), epoch=7),
    )
    monkeypatch.setattr(scale, "time", polls)


@pytest.mark.parametrize(
    ("command", "requested"),
    [(("scale", 5), {"nodes": 5, "standby": 1}), (("standby", 0), {"nodes": 3, "standby": 0})],
    ids=["scale", "standby"],
)
def test_command_waits_until_the_run_has_settled(
    data: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, int], requested: dict[str, int]
) -> None:
    """The command leaves the other number as it is, and prints the placement that was reached."""
    run_follows(data, monkeypatch)
    result = qtopic(*command, "--data", data)

    assert (result.exit_code, desired(data)) == (0, requested)
    assert "Settled" in result.stdout
    assert "placement 7" in result.stdout


def test_json_output_is_the_placement_alone(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With --json, standard output has the run's placement and nothing else."""
    run_follows(data, monkeypatch)
    result = qtopic("scale", 5, "--data", data, "--json")

    assert json.loads(result.stdout) == {**THREE, "nodes": 5, "epoch": 7}


def test_progress_names_failed_replicas(data: Path) -> None:
    """The progress line names a failed replica, which never catches up, and the progress of the others."""
    replicas = [
        {"partition": 3, "role": "active", "failed": "no space left"},
        {"partition": 4, "role": "hydrating", "failed": None, "progress": 0.25, "recordsPerSecond": 1200},
    ]
    body = json.dumps({"partitions": replicas}).encode()
    with node_that_answers(200, body) as url:
        text = scale.change_progress({"nodes": [{"url": url}]})

    assert text == "; partition 3 has failed: no space left; 25 % at 1,200 records/s"


def test_no_wait_returns_before_the_run_follows(data: Path) -> None:
    """With --no-wait the command writes the desired scale and returns."""
    result = qtopic("scale", 5, "--data", data, "--no-wait")

    assert (result.exit_code, result.stdout) == (
        0,
        "Requested: 5 nodes and 1 standby replica of each partition.\n",
    )
    assert desired(data)["nodes"] == 5


def test_second_request_keeps_the_first(data: Path) -> None:
    """A request changes the one before, also if the run does not follow that yet."""
    qtopic("scale", 5, "--data", data, "--no-wait")
    qtopic("standby", 4, "--data", data, "--no-wait")

    assert desired(data) == {"nodes": 5, "standby": 4}


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("scale", 0), "1 to 64 nodes"),
        (("scale", 65), "1 to 64 nodes"),
        (("scale", 1), "run `qtopic scale 2` or `qtopic standby 0` first"),
        (("standby", 3), "run `qtopic scale 4` or `qtopic standby 2` first"),
        (("standby", -1), "0 to 9 standby replicas"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else None,
)
def test_impossible_scale_is_refused_with_advice(data: Path, command: tuple[str, int], message: str) -> None:
    """The command writes nothing, and ends with one sentence and exit code 2."""
    name, number = command
    result = qtopic(name, "--data", data, "--", number)

    assert result.exit_code == 2
    assert message in result.stderr
    assert not (data / DESIRED_SCALE_FILE).exists()


def test_change_continues_after_ctrl_c(data: Path) -> None:
    """Ctrl-C ends the wait and not the change; the last line says so."""
    command = [sys.executable, "-m", "queryable_app.cli", "scale", "5", "--data", str(data)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        eventually("the command waits", (data / DESIRED_SCALE_FILE).exists)
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, text = process.communicate(timeout=20)

    assert process.returncode == 130
    assert text == "The change goes on; the same command waits for it again.\n"
    assert desired(data)["nodes"] == 5


def test_run_that_ends_ends_the_wait(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the run ends, the exit code is 4 and the message says what to do."""
    monkeypatch.setattr(scale, "time", Polls((data / "run.json").unlink))
    result = qtopic("scale", 5, "--data", data)

    assert result.exit_code == 4
    assert f"qtopic run --data {data}" in result.stderr


def test_newer_request_ends_the_wait_for_an_older_one(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command whose request was replaced does not wait for it."""
    newer = {"nodes": 4, "standby": 1}
    monkeypatch.setattr(scale, "time", Polls(lambda: write_file(data / DESIRED_SCALE_FILE, newer)))
    result = qtopic("scale", 5, "--data", data)

    assert result.exit_code == 3
    assert "another command has since requested 4 nodes" in result.stderr
