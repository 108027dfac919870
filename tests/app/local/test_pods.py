"""Test what the processes of a pod get beside the settings of a node."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

from queryable_app.contract import SERVE_ENV
from queryable_app.local import pods
from queryable_app.local.data_directory import DataDirectory
from queryable_app.local.pods import Pod
from tests.support.node import node_settings

_LARGE_PAGES: Final = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_ALLOCATES: Final = """
blocks = [bytes(4000) for _ in range(20_000)]
print(next(line.split()[1] for line in open("/proc/self/smaps_rollup") if line.startswith("AnonHugePages")))
"""


def environments(directory: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Mapping[str, str]]:
    """Return the variables of each process of a pod, by its module. No process starts."""
    given: dict[str, Mapping[str, str]] = {}

    def process(command: list[str], log: Path, environ: Mapping[str, str], inherited: object) -> Any:
        given[command[-1].removeprefix("queryable_app.")] = environ
        return SimpleNamespace()

    monkeypatch.setattr(pods, "Process", process)
    Pod(node_settings(directory), DataDirectory(directory, directory, 0))
    return given


def test_serve_asks_for_large_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """serve has the variables that are for it alone, and ingest does not."""
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    given = environments(tmp_path, monkeypatch)

    assert SERVE_ENV.items() <= given["serve"].items()
    assert not SERVE_ENV.keys() & given["ingest"].keys()


def test_variable_that_the_user_has_set_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of glibc that the user has reach serve as they are."""
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.arena_max=2")

    assert environments(tmp_path, monkeypatch)["serve"]["GLIBC_TUNABLES"] == "glibc.malloc.arena_max=2"


def test_blocks_are_in_large_pages() -> None:
    """Many blocks of 4 KB, as RocksDB's cache has them, are in pages of 2 MB with serve's variables."""
    if not _LARGE_PAGES.exists() or "[never]" in _LARGE_PAGES.read_text():
        pytest.skip(f"{_LARGE_PAGES} does not allow large pages")
    run = subprocess.run(
        [sys.executable, "-c", _ALLOCATES],
        env={**os.environ, **SERVE_ENV},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert int(run.stdout) > 20_000  # of 80 000 KB, even where memory is fragmented
