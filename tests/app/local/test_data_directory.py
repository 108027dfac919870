"""Test the data directory of a run: its locks, its permissions, and the cleanup after a killed run."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from queryable_app.local import data_directory

_RUN = """
import signal, sys
from pathlib import Path
from queryable_app.local.data_directory import opened
with opened(Path(sys.argv[1]) if len(sys.argv) > 1 else None) as data:
    print(data.path, data.pod_sockets(0).parent, flush=True)
    signal.pause()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use an own directory for temporary files."""
    directory = tmp_path / "tmp"
    directory.mkdir()
    monkeypatch.setenv("TMPDIR", str(directory))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return directory


@contextmanager
def another_run(*data: Path) -> Iterator[tuple[Path, Path]]:
    """Start a run in another process, yield its directories, and kill it with -9."""
    run = subprocess.Popen([sys.executable, "-c", _RUN, *map(str, data)], stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    try:
        path, sockets = run.stdout.readline().split()
        yield Path(path), Path(sockets)
    finally:
        run.kill()
        run.wait()
        run.stdout.close()


def test_next_run_removes_what_a_killed_run_has_left(temporary: Path) -> None:
    """A run without --data leaves nothing in the end, also if it was killed."""
    with another_run() as (path, sockets):
        pass
    assert path.exists()
    assert sockets.exists()

    with data_directory.opened(None) as data:
        assert not path.exists()
        assert not sockets.exists()
        assert data.path.exists()
    assert list(temporary.iterdir()) == []


def test_data_of_a_killed_run_stays(tmp_path: Path) -> None:
    """The rows of a run with --data stay after it was killed, wherever they are."""
    with another_run(tmp_path / "tmp" / "qtopic-mine") as (path, _):
        (path / "row").touch()

    with data_directory.opened(None):
        assert (path / "row").exists()


def test_directory_of_a_living_run_stays() -> None:
    """Another run does not remove it."""
    with another_run() as (path, sockets), data_directory.opened(None):
        assert path.exists()
        assert sockets.exists()


def test_only_the_owner_can_read_files_with_secrets(tmp_path: Path) -> None:
    """The resource with its Kafka settings and the token of the nodes have mode 600."""
    before = os.umask(0)
    try:
        with data_directory.opened(tmp_path / "data") as data:
            files = [data.write("resource.json", {"password": "x"}), data.internal_token()]
            data.write("resource.json", {"password": "y"})
            assert [file.stat().st_mode & 0o777 for file in files] == [0o600, 0o600]
            assert data.read("resource.json") == {"password": "y"}
    finally:
        os.umask(before)
