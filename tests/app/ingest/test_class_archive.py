"""Test the class archive with which ingest's JVM starts."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import psutil
import pytest
from pyspark.sql import SparkSession

from queryable_app.ingest import training
from queryable_app.ingest.class_archive import archive_options, archive_path
from queryable_app.ingest.gateway import jvm_process
from queryable_app.ingest.jvm import class_path
from queryable_app.platform import file_lock
from tests.support.processes import busy, may_raise_priorities
from tests.support.waiting import eventually


def test_jvm_uses_the_class_archive(spark: SparkSession, cache: Path) -> None:
    """The JVM uses the archive; it would reject one silently and start in twice the time."""
    mapped = Path(f"/proc/{jvm_process().pid}/maps").read_text()

    assert f"{cache}/classes-" in mapped


def test_jvm_does_not_write_the_archives_classes(spark: SparkSession, cache: Path) -> None:
    """The JVM maps the archive at the address for which it was made, and keeps a part read-only. At another one it would write
    all of it, which takes a fifth of a second and 100 MB that are no longer a file's."""
    mapped = Path(f"/proc/{jvm_process().pid}/maps").read_text().splitlines()

    assert [line for line in mapped if f"{cache}/classes-" in line and " r--p " in line]


def test_archive_has_the_classes_of_kafkas_responses(cache: Path) -> None:
    """The archive has the classes for Kafka's responses, which training loads by name since it has no broker."""
    archive = archive_path(cache, class_path(cache))

    assert b"org/apache/kafka/common/message/FetchResponseDataJsonConverter" in archive.read_bytes()


def test_reinstalled_jars_have_another_archive(tmp_path: Path) -> None:
    """Reinstalled jars get another archive, since the JVM compares their modification times."""
    jar = tmp_path / "a.jar"
    jar.touch()
    before = archive_path(tmp_path, [jar])

    os.utime(jar, (1, 1))

    assert archive_path(tmp_path, [jar]) != before


def test_node_starts_without_an_archive(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A node without an archive starts and logs it: making one takes a core for half a minute."""
    jar = tmp_path / "a.jar"
    jar.touch()

    assert archive_options(tmp_path, [jar]) == []

    assert "class-archive" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [jar]


def test_training_can_wait_for_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `--wait`, a second training ends with the archive that the first one makes."""
    jars, waits, results = [tmp_path / "a.jar"], threading.Event(), list[bool]()
    jars[0].touch()

    def locked(file: IO[str], wait_seconds: float) -> bool:
        at_once = file_lock.locked(file)
        waits.set()
        return at_once or (wait_seconds > 0 and file_lock.locked(file, wait_seconds))

    monkeypatch.setattr(training, "locked", locked)
    with (tmp_path / ".classes.lock").open("w") as first:
        assert file_lock.locked(first)
        second = threading.Thread(target=lambda: results.append(training.make_archive(tmp_path, jars, 60)))
        second.start()
        waits.wait(60)
        archive_path(tmp_path, jars).touch()
    second.join(60)

    assert results == [True]


def trains(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return any("ArchiveClassesAtExit" in word for word in process.cmdline())
    return False


@contextlib.contextmanager
def started_training(
    directory: Path, cache: Path
) -> Iterator[tuple[subprocess.Popen[bytes], psutil.Process]]:
    """Train in a directory during a block, which gets the process and its JVM, which has just started."""
    for made in (*cache.glob("row-writer-*.jar"), *cache.glob("spark-kafka-*")):
        (directory / made.name).symlink_to(made)
    environ = {**os.environ, "QT_CACHE_DIR": str(directory)}
    process = subprocess.Popen([sys.executable, "-m", "queryable_app.ingest.training"], env=environ)
    try:
        children = psutil.Process(process.pid).children
        java = eventually("the JVM trains", lambda: [p for p in children() if trains(p)], 300)
        yield process, java[0]
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_ended_training_leaves_no_jvm(tmp_path: Path, cache: Path, end: signal.Signals) -> None:
    """Training leaves no JVM and no partial archive after SIGTERM or SIGKILL."""
    with started_training(tmp_path, cache) as (process, java):
        process.send_signal(end)
        process.wait(300)  # it has the lowest priority, and ends with the CPU that the other tests leave

    psutil.wait_procs([java], 60)
    assert not java.is_running()
    assert not list(tmp_path.glob("classes-*.jsa"))
    assert end == signal.SIGKILL or not list(tmp_path.glob("training-*"))


def test_training_ends_though_no_core_is_idle(tmp_path: Path, cache: Path) -> None:
    """Training ends soon after SIGTERM on a core that other processes keep busy: it does not wait for idle time."""
    if not may_raise_priorities():
        pytest.skip("CAP_SYS_NICE is missing")
    core = min(os.sched_getaffinity(0))
    with started_training(tmp_path, cache) as (process, java):
        for pid in (process.pid, java.pid):
            for thread in psutil.Process(pid).threads():
                os.sched_setaffinity(thread.id, {core})

        with busy(core, 4):
            process.terminate()
            process.wait(60)
            psutil.wait_procs([java], 60)  # until no zombie is left of it

            assert not java.is_running()
