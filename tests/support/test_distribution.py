"""The distribution of tests over workers, and failures, by runs of pytest over a few files."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.support.distribution import rank

ROOT = Path(__file__).parents[2]
PLUGINS = ("tests.support.distribution", "tests.support.failures")
LOGS = """
import os, pathlib

def test_a():
    with pathlib.Path("log").open("a") as log:
        log.write(os.environ["PYTEST_XDIST_WORKER"] + " " + __file__.split("/tests/")[1] + "\\n")
"""
FILES = {
    "tests/cluster/test_view.py": LOGS,
    "tests/cluster/test_scaling.py": LOGS,
    "tests/integration/test_nodes.py": LOGS,
    "tests/app/test_cli.py": LOGS,
}


def run(directory: Path, *options: str, **files: str) -> subprocess.CompletedProcess[str]:
    for name, content in (FILES | files).items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(content)
    (directory / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    command = [sys.executable, "-m", "pytest", *(f"-p{plugin}" for plugin in PLUGINS)]
    command += ["-pno:cacheprovider", "--no-loadscope-reorder", *options, "tests"]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=120
    )


def logged(directory: Path) -> list[tuple[str, str]]:
    lines = (directory / "log").read_text().splitlines()
    return [(worker, file) for worker, _, file in (line.partition(" ") for line in lines)]


def test_one_worker_runs_all_files_of_the_cluster(tmp_path: Path) -> None:
    """The files that share the cluster run on one worker, and every other file on any."""
    assert run(tmp_path, "--numprocesses=3").returncode == 0
    ran = logged(tmp_path)
    assert len({worker for worker, file in ran if file.startswith("cluster/")}) == 1
    assert sorted(f"tests/{file}" for _, file in ran) == sorted(FILES)


def test_single_worker_runs_long_files_last(tmp_path: Path) -> None:
    """It runs the files of the cluster, the short ones, and then those of tests/integration."""
    run(tmp_path, "--numprocesses=1", "--minutes=10")
    tiers = [file.partition("/")[0] for _, file in logged(tmp_path)]
    assert tiers == ["cluster", "cluster", "app", "integration"]


def test_long_tests_that_did_not_begin_are_named(tmp_path: Path) -> None:
    """Once the minutes are over, the short files still run; the summary names the long ones and the number of their tests."""
    done = run(tmp_path, "--numprocesses=1", "--minutes=0")
    assert "not run, because the minutes were over: 2 tests" in done.stdout, done.stdout
    assert "1 tests  tests/integration/test_nodes.py" in done.stdout
    assert [file.partition("/")[0] for _, file in logged(tmp_path)] == ["cluster", "app"]
    assert done.returncode == 0


def test_second_worker_begins_with_a_long_file(tmp_path: Path) -> None:
    """Whatever ends a run, files of tests/integration have run beside the short ones."""
    run(tmp_path, "--numprocesses=2", "--minutes=0")
    tiers = Counter(file.partition("/")[0] for _, file in logged(tmp_path))
    assert tiers == {"cluster": 1, "integration": 1, "app": 1}


def test_commit_decides_the_order_of_long_files() -> None:
    """With the same commit the files of a long tier have the same order, with another one another order, and stay behind the
    short tiers."""
    files = [f"tests/integration/test_{n}.py" for n in range(8)]

    def order(commit: str) -> list[str]:
        return sorted([*files, "tests/app/test_cli.py"], key=lambda file: rank(file, commit))

    assert order("") == ["tests/app/test_cli.py", *files]
    assert order("one") != order("two")
    assert sorted(order("one")[1:]) == sorted(order("two")[1:]) == files


def test_failure_is_printed_before_the_end(tmp_path: Path) -> None:
    """A failure has a line of its own, with its reason, before the rest of the run."""
    failing = "def test_a():\n    assert 1 + 1 == 3, 'sums'\n"
    done = run(tmp_path, "--numprocesses=1", **{"tests/chart/test_sums.py": failing})
    early, _, _ = done.stdout.partition("= FAILURES =")
    assert "FAILED tests/chart/test_sums.py::test_a (call): AssertionError: sums" in early
