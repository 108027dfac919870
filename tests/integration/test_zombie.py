"""Test an ingest that was suspended and replaced, and then resumes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from queryable_app.contract import NodeSettings
from queryable_app.ingest.exit_codes import SUPERSEDED
from tests.integration import topics
from tests.integration.system import System, resource, serving
from tests.support.waiting import eventually

TOPIC = "zombie"
SEED = 20261121


@contextmanager
def ingesting(settings: NodeSettings, name: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run an ingest process and its JVM in a group of their own."""
    environ = {**os.environ, **settings.to_env()}
    with (Path(settings.data_dir) / "logs" / f"{name}.log").open("w") as log:
        command = [sys.executable, "-m", "queryable_app.ingest"]
        process = subprocess.Popen(command, env=environ, stdout=log, stderr=log, start_new_session=True)
    family = psutil.Process(process.pid)
    try:
        yield process
    finally:
        left = [family, *family.children(recursive=True)] if process.poll() is None else []
        for member in left:
            member.kill()
        process.wait(10)


def feeds(system: System, ingest: subprocess.Popen[bytes]) -> None:
    """Wait until rows arrive from this ingest."""

    def streams() -> bool:
        ingest_status = system.status()["ingest"]
        return bool(ingest_status["pid"] == ingest.pid and ingest_status["state"] == "streaming")

    eventually(f"ingest {ingest.pid} streams\n{system.tail()}", streams, 90)
    rows_arrive(system, 2000)


def rows_arrive(system: System, count: int) -> None:
    def applied() -> int:
        return sum(p["position"] for p in system.status()["partitions"])

    before = applied()
    eventually(f"{count} more records\n{system.tail()}", lambda: applied() >= before + count)


def lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_superseded_ingest_ends_without_a_write(kafka: Any, tmp_path: Path) -> None:
    """A superseded ingest that resumes ends with its exit code; the other one streams on, and every row is right."""
    topics.create(kafka.bootstrap, TOPIC, 3)
    stop = threading.Event()
    producing = threading.Thread(target=topics.churn, args=(kafka.bootstrap, TOPIC, stop, SEED))
    producing.start()
    try:
        with (
            serving(resource(TOPIC, kafka.bootstrap), tmp_path, 3) as (system, settings),
            ingesting(settings, "older") as older,
        ):
            feeds(system, older)
            os.killpg(older.pid, signal.SIGSTOP)
            members = [psutil.Process(older.pid), *psutil.Process(older.pid).children()]
            assert {member.name() for member in members} > {"java"}
            eventually(
                "all processes are stopped", lambda: {m.status() for m in members} == {psutil.STATUS_STOPPED}
            )

            with ingesting(settings, "newer") as newer:
                feeds(system, newer)
                os.killpg(older.pid, signal.SIGCONT)
                assert older.wait(90) == SUPERSEDED
                rows_arrive(system, 2000)

                stop.set()
                producing.join(70)
                system.at_end(topics.ends(kafka.bootstrap, TOPIC))
                system.assert_fold(topics.records(kafka.bootstrap, TOPIC))
                assert system.status()["ingest"]["pid"] == newer.pid
                assert system.log.read_text().count('"event": "start"') == 2
                assert not any(lives(member) for member in members)
    finally:
        stop.set()
        producing.join(70)
