"""`qtopic scale` and `qtopic standby`, beside a run that is nothing but its directory."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from queryable_app.commands.group import qtopic as commands
from queryable_app.commands.scale import change_progress
from queryable_app.local.data_directory import write_file
from queryable_app.local.desired_scale import DESIRED_SCALE_FILE
from tests.app.test_cli import node_that_answers
from tests.support.waiting import eventually

THREE = {"epoch": 4, "settled": True, "nodes": 3, "standby": 1, "toBuild": 0, "toLetGo": 0}


def describe(data: Path, **placement: Any) -> None:
    write_file(data / "run.json", {"kafka": "", "nodes": [], "placement": {**THREE, **placement}})


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A run with three nodes and a standby copy of each partition."""
    describe(tmp_path)
    return tmp_path


def qtopic(*arguments: object) -> Result:
    return CliRunner().invoke(commands, [str(a) for a in arguments])


def wish(data: Path) -> Any:
    return json.loads((data / DESIRED_SCALE_FILE).read_text())


@contextmanager
def run_that_follows(data: Path) -> Iterator[None]:
    """Takes up a wish when there is one, and settles a moment later."""
    ended = threading.Event()

    def follow() -> None:
        while not (data / DESIRED_SCALE_FILE).exists() and not ended.wait(0.01):
            pass
        describe(data, **wish(data), epoch=5, settled=False, toBuild=2, toLetGo=2)
        ended.wait(0.5)
        describe(data, **wish(data), epoch=7)

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize(
    ("command", "wished"),
    [(("scale", 5), {"nodes": 5, "standby": 1}), (("standby", 0), {"nodes": 3, "standby": 0})],
    ids=["scale", "standby"],
)
def test_it_waits_until_the_run_has_settled(
    data: Path, command: tuple[str, int], wished: dict[str, int]
) -> None:
    """The other number stays as it is; what was reached is said."""
    with run_that_follows(data):
        result = qtopic(*command, "--data", data)

    assert (result.exit_code, wish(data)) == (0, wished)
    assert "Settled" in result.stdout
    assert "placement 7" in result.stdout


def test_scripts_get_json(data: Path) -> None:
    """What the run says of its placement, and nothing else, on standard output."""
    with run_that_follows(data):
        result = qtopic("scale", 5, "--data", data, "--json")

    assert json.loads(result.stdout) == {**THREE, "nodes": 5, "epoch": 7}


def test_what_holds_up_the_change_is_said(data: Path) -> None:
    """A copy that has failed is never caught up, and nobody should have to guess that."""
    replicas = [
        {"partition": 3, "role": "active", "failed": "no space left"},
        {"partition": 4, "role": "hydrating", "failed": None, "progress": 0.25, "recordsPerSecond": 1200},
    ]
    body = json.dumps({"partitions": replicas}).encode()
    with node_that_answers(200, body) as url:
        said = change_progress({"nodes": [{"url": url}]})

    assert said == "; partition 3 has failed: no space left; 25 % at 1,200 records/s"


def test_it_need_not_be_waited_for(data: Path) -> None:
    """The wish is there, and nobody has taken it up yet."""
    result = qtopic("scale", 5, "--data", data, "--no-wait")

    assert (result.exit_code, result.stdout) == (
        0,
        "Asked for 5 nodes and 1 standby copy of each partition.\n",
    )
    assert wish(data)["nodes"] == 5


def test_two_wishes_in_a_row_are_both_kept(data: Path) -> None:
    """The second builds on the first, though the run has not taken that one up."""
    qtopic("scale", 5, "--data", data, "--no-wait")
    qtopic("standby", 4, "--data", data, "--no-wait")

    assert wish(data) == {"nodes": 5, "standby": 4}


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("scale", 0), "1 to 64 nodes"),
        (("scale", 65), "1 to 64 nodes"),
        (("scale", 1), "run `qtopic scale 2` or `qtopic standby 0` first"),
        (("standby", 3), "run `qtopic scale 4` or `qtopic standby 2` first"),
        (("standby", -1), "0 to 9 standby copies"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else None,
)
def test_what_cannot_be_is_refused_with_advice(data: Path, command: tuple[str, int], said: str) -> None:
    """One sentence, exit code 2, and no wish."""
    name, number = command
    result = qtopic(name, "--data", data, "--", number)

    assert result.exit_code == 2
    assert said in result.stderr
    assert not (data / DESIRED_SCALE_FILE).exists()


def test_ctrl_c_leaves_the_change_going_on(data: Path) -> None:
    """The wish stays, and the last line says so."""
    command = [sys.executable, "-m", "queryable_app.cli", "scale", "5", "--data", str(data)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        eventually("it waits", (data / DESIRED_SCALE_FILE).exists)
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=20)

    assert process.returncode == 130
    assert said == "The change goes on; the same command waits for it again.\n"
    assert wish(data)["nodes"] == 5


def test_a_run_that_ends_is_not_waited_for(data: Path) -> None:
    """Exit code 4, and what to do."""
    ended = threading.Timer(0.5, (data / "run.json").unlink)
    ended.start()
    result = qtopic("scale", 5, "--data", data)
    ended.join()

    assert result.exit_code == 4
    assert f"qtopic run --data {data}" in result.stderr


def test_a_newer_wish_ends_the_wait_for_an_older(data: Path) -> None:
    """Otherwise it would be waited for something that does not come any more."""
    newer = threading.Timer(0.5, write_file, (data / DESIRED_SCALE_FILE, {"nodes": 4, "standby": 1}))
    newer.start()
    result = qtopic("scale", 5, "--data", data)
    newer.join()

    assert result.exit_code == 3
    assert "someone has asked for 4 nodes" in result.stderr
