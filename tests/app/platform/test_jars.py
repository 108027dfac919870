"""Test where JVM libraries are cached, and the messages if they cannot be fetched."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from queryable_app.ingest.writer_jar import writer_jar
from queryable_app.platform import jars


@pytest.fixture(autouse=True)
def _fresh_java() -> None:
    jars.find_java.cache_clear()


def test_setting_chooses_the_cache() -> None:
    """Without the setting, the cache is the user's cache directory by XDG."""
    assert jars.cache_dir("/x") == Path("/x")
    assert jars.cache_dir("", {"XDG_CACHE_HOME": "/c"}) == Path("/c/queryable-topics")
    assert jars.cache_dir("", {}) == Path.home() / ".cache" / "queryable-topics"


def test_connector_is_four_jars_and_fetched_once() -> None:
    """Cached jars are used without a download and without a message."""
    cache = jars.cache_dir(os.environ.get("QT_CACHE_DIR", ""))
    jars.connector_jars(cache)
    lines: list[str] = []
    assert [jar.name.rpartition("-")[0] for jar in jars.connector_jars(cache, lines.append)][:2] == [
        "commons-pool2",
        "kafka-clients",
    ]
    assert len(jars.connector_jars(cache, lines.append)) == 4
    assert lines == []


def test_every_jar_has_its_digest() -> None:
    """The digests cover exactly the jars of a download."""
    cache = jars.cache_dir(os.environ.get("QT_CACHE_DIR", ""))
    jars.ingest_jars(cache)
    jars.broker_jars(cache)
    lines = [line for wanted in jars.SETS for line in jars.digest_lines(wanted, cache / wanted.directory)]
    assert jars.DIGESTS_FILE.read_text().splitlines() == lines


@pytest.mark.parametrize("change", ["other bytes", "one more", "one less"])
def test_exchanged_jar_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    """A jar with another digest is never used; one sentence names it and says what to do."""
    good = {jar.name: jar for jar in jars.connector_jars(jars.cache_dir(os.environ.get("QT_CACHE_DIR", "")))}

    def download(_: object, __: Path, scratch: Path) -> Path:
        into = scratch / "jars"
        into.mkdir()
        for name, jar in good.items():
            (into / name).write_bytes(jar.read_bytes())
        changed = into / ("evil-1.jar" if change == "one more" else "commons-pool2-2.13.1.jar")
        if change == "one less":
            changed.unlink()
        else:
            changed.write_bytes(b"evil")
        return into

    monkeypatch.setattr(jars, "download", download)
    with pytest.raises(jars.JarsError, match=r"another (evil-1|commons-pool2-2\.13\.1)\.jar than") as refused:
        jars.connector_jars(tmp_path, lambda _: None)
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.glob("spark-kafka-*"))


def test_failed_download_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A download prints its begin, fails with advice, and leaves no complete directory."""
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=1")
    lines: list[str] = []
    with pytest.raises(jars.JarsError, match=r"could not be downloaded .*QT_IVY_SETTINGS") as failed:
        jars.connector_jars(tmp_path, lines.append)
    assert "\n" not in str(failed.value)
    assert lines[0].startswith("Downloading Spark's Kafka connector")
    assert not list(tmp_path.glob("spark-kafka-*"))


def test_missing_java_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Java must be on the PATH or at JAVA_HOME."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(jars.JarsError, match=r"^Java 17 or newer is needed and there is no java on the PATH"):
        jars.find_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(jars.JarsError, match=r"JAVA_HOME is .*, which has no bin/java"):
        jars.find_java()


@pytest.mark.parametrize(("printed", "version"), [("1.8.0_392", 8), ("11.0.21", 11)])
def test_old_java_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: str, version: int
) -> None:
    """The message has the version and says what to set."""
    _java(tmp_path, f"echo 'openjdk version \"{printed}\" 2023' >&2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(jars.JarsError, match=f"bin/java is {version}: set JAVA_HOME"):
        jars.find_java()


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.21"])
def test_release_file_saves_starting_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """The version comes from the file `release` beside `bin`, and no JVM starts for it."""
    _java(tmp_path, "exit 1", f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(jars.JarsError, match=f"bin/java is {version.removeprefix('1.').split('.')[0]}: set"):
        jars.find_java()


def test_release_file_of_another_program_is_ignored(tmp_path: Path) -> None:
    """A file `release` without a version of Java, such as one beside a wrapper script, does not count."""
    java = _java(tmp_path, "echo 'openjdk version \"17.0.1\"' >&2", "NAME=other\n")
    assert jars.java_version(java) == 17


def _java(home: Path, script: str, release: str = "") -> Path:
    """Make a Java of this script, with a file `release` if it has a text."""
    (home / "bin").mkdir()
    java = home / "bin" / "java"
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)
    if release:
        (home / "release").write_text(release)
    return java


def test_parallel_callers_compile_the_writer_once(tmp_path: Path) -> None:
    """Parallel callers wait for the first one and use its jar; no JDK is needed."""
    connector = jars.ingest_jars(jars.cache_dir(os.environ.get("QT_CACHE_DIR", "")))
    with ThreadPoolExecutor(4) as pool:
        made = set(pool.map(lambda _: writer_jar(tmp_path, connector), range(4)))
    assert [path.suffix for path in made] == [".jar"]
    assert [path for path in tmp_path.iterdir() if not path.name.startswith(".")] == list(made)
