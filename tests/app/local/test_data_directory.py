"""The directory of a run: what a killed run leaves, and who may read it."""

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
import sys, time
from pathlib import Path
from queryable_app.local.data_directory import opened
with opened(Path(sys.argv[1]) if len(sys.argv) > 1 else None) as data:
    print(data.path, data.node_sockets(0).parent, flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory for temporary files of its own."""
    directory = tmp_path / "tmp"
    directory.mkdir()
    monkeypatch.setenv("TMPDIR", str(directory))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return directory


@contextmanager
def another_run(*data: Path) -> Iterator[tuple[Path, Path]]:
    """A run of another process; its directories. It is killed with -9 at the end."""
    run = subprocess.Popen([sys.executable, "-c", _RUN, *map(str, data)], stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    try:
        path, sockets = run.stdout.readline().split()
        yield Path(path), Path(sockets)
    finally:
        run.kill()
        run.wait()
        run.stdout.close()


def test_the_next_run_takes_away_what_a_killed_one_left(temporary: Path) -> None:
    """Without --data nothing was to be kept, also when the run could not clean up itself."""
    with another_run() as (path, sockets):
        pass
    assert path.exists()
    assert sockets.exists()

    with data_directory.opened(None) as data:
        assert not path.exists()
        assert not sockets.exists()
        assert data.path.exists()
    assert list(temporary.iterdir()) == []


def test_what_is_to_be_kept_is_kept(tmp_path: Path) -> None:
    """The rows of a run with --data outlive its being killed, wherever they are."""
    with another_run(tmp_path / "tmp" / "qtopic-mine") as (path, _):
        (path / "row").touch()

    with data_directory.opened(None):
        assert (path / "row").exists()


def test_a_run_that_lives_is_left_alone() -> None:
    """Its directory is nobody else's to take away."""
    with another_run() as (path, sockets), data_directory.opened(None):
        assert path.exists()
        assert sockets.exists()


def test_only_its_owner_reads_what_may_hold_a_secret(tmp_path: Path) -> None:
    """The resource with its Kafka settings, and the token of the nodes."""
    before = os.umask(0)
    try:
        with data_directory.opened(tmp_path / "data") as data:
            files = [data.write("resource.json", {"password": "x"}), data.internal_token()]
            data.write("resource.json", {"password": "y"})
            assert [file.stat().st_mode & 0o777 for file in files] == [0o600, 0o600]
            assert data.read("resource.json") == {"password": "y"}
    finally:
        os.umask(before)
