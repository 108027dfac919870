"""Test what the image is built from."""

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
    """Return the digests of each `package==version ; marker`."""
    packages: dict[str, set[str]] = {}
    current = ""
    for line in (ROOT / name).read_text().splitlines():
        if match := re.match(r"(\S+==[^\\]+)", line):
            current = match[1].strip()
            packages[current] = set()
        packages.get(current, set()).update(re.findall(r"--hash=(\S+)", line))
    return packages


def test_image_has_the_tested_packages() -> None:
    """The image has the versions and digests of the tests' environment, without development tools."""
    here, image = locked("requirements.lock"), locked("requirements-image.lock")
    assert {package: here.get(package) for package in image} == image
    names = {package.partition("==")[0] for package in image}
    assert {"pyspark", "rocksdict", "uvicorn", "kopf", "kubernetes"} <= names
    assert names.isdisjoint({"pytest", "mypy", "ruff", "hypothesis"})


def test_image_has_the_version_of_the_project() -> None:
    """The label of the image is the version of the project."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f'image.version="{project["version"]}"' in (ROOT / "Dockerfile").read_text()


def test_dockerfile_names_no_host_and_no_health_check() -> None:
    """The build's environment chooses where packages come from, and Kubernetes checks health itself."""
    for file in (ROOT / "Dockerfile", ROOT / "tests" / "cluster" / "kafka" / "Dockerfile"):
        instructions = [line for line in file.read_text().splitlines() if not line.startswith("#")]
        assert not [line for line in instructions if "://" in line or "HEALTHCHECK" in line]


def test_jar_with_a_fractional_time_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An image keeps no fraction of a second, and the JVM ignores a class archive whose jar has another time."""
    connector = jars.ingest_jars(jars.cache_dir(os.environ.get("QT_CACHE_DIR", "")))
    for jar in connector:
        (tmp_path / jar.parent.name).mkdir(exist_ok=True)
        shutil.copy(jar, tmp_path / jar.parent.name)
        os.utime(tmp_path / jar.parent.name / jar.name, ns=(1_500_000_000, 1_500_000_000))
    monkeypatch.setenv("QT_CACHE_DIR", str(tmp_path))

    assert main() == 1
    assert "a fraction of a second" in capsys.readouterr().err


def test_connector_stage_has_every_module_that_it_imports() -> None:
    """The stage that fetches the connector copies a few modules, and each module of ours that those import."""
    instructions = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    stage = instructions.partition("AS connector")[2].partition("\nFROM ")[0]
    copied = set(re.findall(r"app/(queryable_app/\S+\.py)", stage))
    modules = {name.removesuffix(".py").replace("/", ".").removesuffix(".__init__") for name in copied}
    imported: set[str] = set()
    for name in copied:
        imported |= set(
            re.findall(r"^from (queryable_app\S*) import", (ROOT / "app" / name).read_text(), re.MULTILINE)
        )
    assert {"queryable_app.platform.jars"} <= modules
    assert imported <= modules
