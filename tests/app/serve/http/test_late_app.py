"""Test a node whose application is still being made: a real process, in which FastAPI's import waits or fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.support.serve_process import FakeIngest, key_of, serve_process
from tests.support.waiting import eventually

# Waits in the place of FastAPI for the file `go`, and then imports FastAPI itself.
_WAITING = """
import importlib, sys, time
from pathlib import Path
here = Path(__file__).parent
while not (here / "go").exists():
    time.sleep(0.01)
sys.path.remove(str(here))
del sys.modules["fastapi"]
importlib.invalidate_caches()
importlib.import_module("fastapi")
"""


def _modules(directory: Path, fastapi: str) -> Path:
    directory.mkdir()
    (directory / "fastapi.py").write_text(fastapi)
    return directory


def test_a_node_answers_reads_before_its_application_is_made(tmp_path: Path) -> None:
    """A plain read is answered while FastAPI is imported; a request that needs it is answered afterwards, and so is the next."""
    modules = _modules(tmp_path / "modules", _WAITING)
    key = f"/v1/keys/{key_of(0, 1, 2)}"
    any_replica = {"read": {"consistency": "any"}}  # Kafka does not say where the log ends
    with serve_process(tmp_path, spec=any_replica, modules=modules) as node, FakeIngest(node) as ingest:
        assert node.client.get(key).json()["reason"] == "not_available"
        ingest.ends = {0: 5, 1: 5}
        eventually("the row is readable", lambda: node.client.get(key).status_code == 200)
        with pytest.raises(httpx.ReadTimeout), httpx.Client(base_url=node.client.base_url) as impatient:
            impatient.get("/livez", timeout=0.5)
        (modules / "go").touch()
        assert node.client.get("/livez").status_code == 200
        assert "/v1/keys/{key}" in node.client.get("/openapi.json").json()["paths"]


def test_a_node_without_an_application_ends(tmp_path: Path) -> None:
    """A node whose application cannot be imported ends with an error, so that its supervisor starts it again and says so."""
    modules = _modules(tmp_path / "modules", "raise ImportError('no such library')")
    with serve_process(tmp_path, modules=modules) as node:
        eventually("the process ends", lambda: node.process.poll() is not None)
        assert node.process.returncode == 1
        assert "no such library" in node.log.read_text()


def test_a_node_starts_without_fastapi() -> None:
    """What a node imports before it serves does not include FastAPI."""
    code = "import sys, queryable_app.serve.process; print('fastapi' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found == "False\n"
