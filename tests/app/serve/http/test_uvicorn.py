"""Test that the libraries' internals that the node overrides are the versions it was written against.

A new version that changes that code fails here, before it fails in a node. Read what has changed, run tests/app/serve and
tests/hostile with it, then write the new digest and, where it is another minor version, the new range in pyproject.toml.
"""

from __future__ import annotations

import hashlib
import inspect
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from aiokafka.admin import AIOKafkaAdminClient
from packaging.requirements import Requirement
from uvicorn.protocols.http import flow_control, httptools_impl

_TOP = Path(__file__).parents[4]


def _digest(*parts: Any) -> str:
    return hashlib.sha256("".join(map(inspect.getsource, parts)).encode()).hexdigest()[:16]


@pytest.mark.parametrize(
    ("parts", "known"),
    [
        (
            (httptools_impl, flow_control),
            "ea814cf42e50628d",
        ),  # BoundedProtocol and FastLane extend the protocol
        (
            (uvicorn.Server.capture_signals, uvicorn.Server.serve, uvicorn.Server.shutdown),
            "80d98c19276915c3",
        ),  # _Server
        (
            (AIOKafkaAdminClient._send_request,),
            "1ed126f126dd917a",
        ),  # the operator's look-up of topics, and its deletions
    ],
    ids=["protocol", "server", "admin"],
)
def test_overridden_code_is_unchanged(parts: tuple[Any, ...], known: str) -> None:
    """The installed version has the code that the overrides were tested with."""
    assert _digest(*parts) == known


@pytest.mark.parametrize("name", ["uvicorn", "aiokafka"])
def test_overridden_library_is_pinned(name: str) -> None:
    """An overridden library is pinned to its minor version, and the installed version is the locked one."""
    project = tomllib.loads((_TOP / "pyproject.toml").read_text())["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    wanted_by = [Requirement(text) for texts in extras.values() for text in texts]
    [wanted] = {str(wanted.specifier) for wanted in wanted_by if wanted.name == name}
    installed = version(name)
    major, minor = map(int, installed.split(".")[:2])
    assert set(wanted.split(",")) == {f">={major}.{minor}", f"<{major}.{minor + 1}"}
    assert f"\n{name}=={installed} " in "\n" + (_TOP / "requirements.lock").read_text()
