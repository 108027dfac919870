"""What the image is made from."""

from __future__ import annotations

import os
import re
import shutil
import tomllib
from pathlib import Path

import pytest

from queryable_app.ingest.prepare import main
from queryable_app.platform import jars

ROOT = Path(__file__).parents[2]


def locked(name: str) -> dict[str, set[str]]:
    """`package==version ; marker` → digests."""
    packages: dict[str, set[str]] = {}
    current = ""
    for line in (ROOT / name).read_text().splitlines():
        if match := re.match(r"(\S+==[^\\]+)", line):
            current = match[1].strip()
            packages[current] = set()
        packages.get(current, set()).update(re.findall(r"--hash=(\S+)", line))
    return packages


def test_the_image_has_the_packages_that_are_tested() -> None:
    """The same versions and digests as here, without the tools of development."""
    here, image = locked("requirements.lock"), locked("requirements-image.lock")
    assert {package: here.get(package) for package in image} == image
    names = {package.partition("==")[0] for package in image}
    assert {"pyspark", "rocksdict", "uvicorn", "kopf", "kubernetes"} <= names
    assert names.isdisjoint({"pytest", "mypy", "ruff", "hypothesis"})


def test_the_image_says_which_version_it_is() -> None:
    """The project's."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f'image.version="{project["version"]}"' in (ROOT / "Dockerfile").read_text()


def test_the_image_names_no_host_and_checks_no_health() -> None:
    """Packages come from wherever the one who builds it gets them, and Kubernetes asks for health itself."""
    for file in (ROOT / "Dockerfile", ROOT / "tests" / "cluster" / "kafka" / "Dockerfile"):
        instructions = [line for line in file.read_text().splitlines() if not line.startswith("#")]
        assert not [line for line in instructions if "://" in line or "HEALTHCHECK" in line]


def test_jars_whose_times_an_image_does_not_keep_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The archive would not be taken, and nobody would notice but by the clock."""
    connector = jars.connector_jars(jars.cache_dir(os.environ.get("QT_CACHE_DIR", "")))
    for jar in connector:
        (tmp_path / jar.parent.name).mkdir(exist_ok=True)
        shutil.copy(jar, tmp_path / jar.parent.name)
        os.utime(tmp_path / jar.parent.name / jar.name, ns=(1_500_000_000, 1_500_000_000))
    monkeypatch.setenv("QT_CACHE_DIR", str(tmp_path))

    assert main() == 1
    assert "a fraction of a second" in capsys.readouterr().err
