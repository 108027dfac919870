"""The suite itself: a test that fails takes no other one with it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = """
import asyncio, gc, socket

def test_fails():
    left_open = socket.create_server(("127.0.0.1", 0))
    assert left_open.getsockname()[1] == 0

def test_fails_in_a_loop():
    async def client():
        address = left_open.getsockname()
        reader, writer = await asyncio.open_connection(*address)
        assert reader is None

    left_open = socket.create_server(("127.0.0.1", 0))
    asyncio.run(client())

def test_passes():
    gc.collect()
"""


def test_leftovers_of_a_failed_test_fail_no_other(tmp_path: Path) -> None:
    """Two tests fail with sockets open; the third one, in which they would be collected, passes."""
    (tmp_path / "test_leaving.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "tests.support.leftovers", "-p", "no:cacheprovider"]
    command += ["-W", "error", "-c", os.devnull, "--rootdir", str(tmp_path), str(tmp_path)]
    root = Path(__file__).parents[1]
    run = subprocess.run(
        command,
        cwd=root,
        env=dict(os.environ) | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "2 failed, 1 passed" in run.stdout, run.stdout + run.stderr
