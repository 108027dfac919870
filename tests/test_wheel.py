"""Test what `hatch_build.py` compiles, and what the wheel is without a compiler."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tomllib
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[1]
HATCH = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]
MODULES = HATCH["build"]["targets"]["wheel"]["hooks"]["custom"]["modules"]


def build(directory: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Build the wheel, with every call of a C compiler failing."""
    return subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-v", "--no-deps", "--wheel-dir", str(directory), str(ROOT)],
        capture_output=True,
        text=True,
        env={**os.environ, "CC": "false", **environ},
    )


def origin(module: str) -> str:
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return spec.origin


@pytest.mark.parametrize("module", MODULES)
def test_installed_module_is_compiled(module: str) -> None:
    """Where the wheel is installed, Python imports each module of the list as compiled."""
    if Path(origin("queryable_app")).is_relative_to(ROOT / "app"):
        pytest.skip("the wheel is missing: its sources are installed")
    if not shutil.which("cc"):
        pytest.skip("a C compiler is missing")
    assert origin(module).endswith(tuple(EXTENSION_SUFFIXES))


@pytest.mark.parametrize("module", MODULES)
def test_compiled_module_has_no_coroutine(module: str) -> None:
    """A compiled coroutine hangs on Python 3.13, so no module of the list has one."""
    assert "async def" not in (ROOT / "app" / f"{module.replace('.', '/')}.py").read_text()


def test_wheel_without_a_compiler_has_the_sources(tmp_path: Path) -> None:
    """Where nothing can be compiled, the build says so, and the wheel is one for every platform."""
    built = build(tmp_path)

    assert built.returncode == 0, built.stderr
    assert "The wheel has no compiled modules" in built.stdout + built.stderr
    (wheel,) = tmp_path.iterdir()
    assert wheel.name.endswith("-py3-none-any.whl")
    names = ZipFile(wheel).namelist()
    assert {f"{module.replace('.', '/')}.py" for module in MODULES} <= set(names)
    assert not [name for name in names if name.endswith(tuple(EXTENSION_SUFFIXES))]


def test_wheel_that_must_be_compiled_is_not_built_without_a_compiler(tmp_path: Path) -> None:
    """With QT_COMPILE=always, a build without a compiler fails."""
    built = build(tmp_path, QT_COMPILE="always")

    assert built.returncode != 0
    assert list(tmp_path.iterdir()) == []


def test_unknown_setting_of_the_build_is_refused(tmp_path: Path) -> None:
    """The message names the setting and its values."""
    built = build(tmp_path, QT_COMPILE="yes")

    assert built.returncode != 0
    assert "QT_COMPILE is 'yes': leave it out, or set it to always or never" in built.stdout + built.stderr
