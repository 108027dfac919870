"""Test the disk guard on a small real file system that fills up."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from queryable_app.policy.disk_mark import Pause
from queryable_app.serve.api import metrics
from queryable_app.serve.api.status import readiness, status_json
from queryable_app.serve.node import Node
from queryable_app.serve.store.disk_guard import DiskGuard, used_percent
from queryable_app.wire.disk_format import ReplicaState
from tests.support.node import node_settings, put, slice_payload
from tests.support.waiting import until

MARK = 60
SIZE_MB = 64


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "disk"
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MB}m", "none", str(directory)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("no file system may be mounted here")
    yield directory
    subprocess.run(["umount", str(directory)], check=True)


def fill_to(directory: Path, percent: float) -> None:
    """Fill the disk to this share with a file beside the stores."""
    ballast = directory / "ballast"
    ballast.unlink(missing_ok=True)
    more = int((percent - used_percent(directory)) / 100 * SIZE_MB * (1 << 20))
    if more > 0:
        ballast.write_bytes(b"x" * more)


def test_full_disk_pauses_ingest_until_there_is_space(
    small_disk: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The guard pauses hydrating replicas first, then all. Reads continue, and status, metrics and one
    event for each change show it."""
    settings = node_settings(small_disk, 2, storage={"highWaterPercent": MARK})

    async def run() -> None:
        node = Node.open(settings)
        node.disk_guard._look_seconds = 0.02
        measured: list[Path] = []

        def noted(path: Path) -> float:
            measured.append(path)
            return used_percent(path)

        node.disk_guard._used = noted
        replicas = node.replicas
        replicas.by_partition[0].apply((), ReplicaState(0, True))
        node.slices.apply(slice_payload(put(0, b"a", b"1")))
        await node.start()
        try:
            story: list[tuple[int, Pause, list[int]]] = [
                (MARK - 5, "none", [0, 1]),
                (MARK + 5, "hydrating", [0]),
                (MARK + 25, "all", []),
                (MARK - 1, "all", []),  # not before there is some room
                (MARK - 5, "none", [0, 1]),
            ]
            for percent, paused, wanted in story:
                fill_to(small_disk, percent)
                await until(f"{paused} at {percent} %", lambda p=paused: node.disk_guard.paused == p)  # type: ignore[misc]
                measured.clear()
                await until("several measurements change nothing", lambda: len(measured) > 3)
                check(node, paused, wanted)
        finally:
            await node.stop()

    asyncio.run(run())
    assert capfd.readouterr().err.count('"event": "disk-high-water"') == 3


def check(node: Node, paused: Pause, wanted: list[int]) -> None:
    status = status_json(node)
    assert status["disk"]["paused"] == paused
    assert status["disk"]["highWaterPercent"] == MARK
    assert 0 < status["disk"]["usedPercent"] < 100
    assert node.replicas.partitions_to_ingest() == wanted
    reasons = [replica["paused"] for replica in status["partitions"]]
    assert [text is None for text in reasons] == [partition in wanted for partition in range(2)]
    if paused != "none":
        assert f"the mark is {MARK} %" in str(reasons[1])
    assert node.replicas.by_partition[0].store.get(b"a") is not None
    exposed = metrics.exposition(metrics.registry(node)).decode()
    for which in ("hydrating", "all"):
        assert f'qt_ingest_paused{{copies="{which}"}} {float(paused == which)}' in exposed
    assert readiness(node)["complete"] == 1


def test_used_percent_matches_df(tmp_path: Path) -> None:
    """The used share is the one that `df` rounds up, without the blocks for root."""
    shown = subprocess.run(["df", "--output=pcent", str(tmp_path)], capture_output=True, check=True).stdout
    assert abs(used_percent(tmp_path) - int(shown.split()[1].strip(b" %"))) <= 1.5


def test_guard_measures_the_disk_before_ingest_begins(tmp_path: Path) -> None:
    """The first measurement is part of the start."""
    pauses: list[Pause] = []

    async def run() -> None:
        guard = DiskGuard(tmp_path / "data", MARK, pauses.append, lambda _: 95.0)
        await guard.start()
        assert pauses == ["all"]
        await guard.stop()

    asyncio.run(run())


def test_failed_measurement_is_repeated(tmp_path: Path) -> None:
    """A file system that cannot be measured for a moment is measured again."""
    readings: Iterator[float | OSError] = iter([10.0, OSError("stale"), 95.0])
    pauses: list[Pause] = []

    def used(_: Path) -> float:
        reading = next(readings, 95.0)
        if isinstance(reading, OSError):
            raise reading
        return reading

    async def run() -> None:
        guard = DiskGuard(tmp_path, MARK, pauses.append, used, 0.01)
        await guard.start()
        await until("it has looked again", lambda: pauses == ["all"])
        await guard.stop()

    asyncio.run(run())
