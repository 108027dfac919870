"""Nodes that come and go with the placement: real serve processes, whose Kafka and Java are not there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from queryable_app.local.cluster import LocalCluster
from queryable_app.local.data_directory import DataDirectory, opened
from queryable_app.local.desired_scale import DESIRED_SCALE_FILE, DesiredScale
from queryable_app.local.nodes import NodeFailed, start_placement
from queryable_app.local.processes import free_ports, stop

SPEC: dict[str, Any] = {"kafka": {"bootstrapServers": "127.0.0.1:1", "config": {}}, "topic": "users"}


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DataDirectory]:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with opened(tmp_path / "data") as directory:
        yield directory


@pytest.fixture
def fleet(data: DataDirectory) -> Iterator[LocalCluster]:
    """One node with four partitions."""
    wish = DesiredScale(1, 0)
    url = f"http://127.0.0.1:{free_ports(1)[0]}"
    placement = start_placement(None, "local.users.r1", 4, [url], wish)
    running = LocalCluster("users-r1", SPEC, data, placement, wish, port=0)
    try:
        yield running
    finally:
        stop(running.processes, 8)
        running.close()


def tending_until(
    what: str, fleet: LocalCluster, check: Callable[[], bool], seconds: float = 40
) -> list[str]:
    said: list[str] = []
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}; {said}; {fleet.describe()}"
        said += fleet.tick()
        time.sleep(0.05)
    return said


def named(fleet: LocalCluster) -> list[str]:
    return [node["name"] for node in fleet.describe()["nodes"]]


def test_a_node_is_named_when_it_answers(fleet: LocalCluster) -> None:
    """Not before: scripts read the addresses and ask at once."""
    assert named(fleet) == []

    tending_until("it answers", fleet, lambda: not fleet.silent)

    assert named(fleet) == ["users-r1-0"]
    assert httpx.get(f"{fleet.nodes[0].url}/livez").is_success


def test_nodes_come_and_go_as_is_wished(fleet: LocalCluster, data: DataDirectory) -> None:
    """The new one builds copies; wished away again it is named no longer, then stopped, and its data is gone."""
    tending_until("the first answers", fleet, lambda: fleet.describe()["placement"]["settled"])

    data.write(DESIRED_SCALE_FILE, DesiredScale(2, 0).to_json())
    tending_until("the second answers", fleet, lambda: named(fleet) == ["users-r1-0", "users-r1-1"])
    described = fleet.describe()["placement"]
    assert (described["nodes"], described["settled"], described["toBuild"]) == (2, False, 2)
    second = psutil.Process(fleet.describe()["nodes"][1]["pids"]["serve"])

    data.write(DESIRED_SCALE_FILE, DesiredScale(1, 0).to_json())
    said = tending_until("settled", fleet, lambda: fleet.describe()["placement"]["settled"])

    assert "users-r1-1 holds nothing any more and is stopped" in said
    assert named(fleet) == ["users-r1-0"]
    assert not second.is_running()
    assert not data.node_data(1).exists()


@pytest.mark.parametrize("text", ["{", "{}", '{"nodes": 0, "standby": 0}', '{"nodes": "x", "standby": 0}'])
def test_a_wish_that_makes_no_sense_is_ignored(fleet: LocalCluster, data: DataDirectory, text: str) -> None:
    """Someone wrote it by hand: the run goes on as it is."""
    (data.path / DESIRED_SCALE_FILE).write_text(text)
    tending_until("it answers", fleet, lambda: not fleet.silent)

    assert fleet.wish == DesiredScale(1, 0)


def test_a_node_whose_ingest_has_failed_for_good_is_not_waited_for(fleet: LocalCluster) -> None:
    """The failure is what ingest says: here there is no Java."""
    (node,) = fleet.nodes
    with httpx.Client(timeout=2, trust_env=False) as http:

        def wait() -> None:
            tending_until("it has failed", fleet, lambda: not node.missing(http))

        with pytest.raises(NodeFailed) as failed:
            wait()
    assert failed.value.failure.reason == "JavaMissing"
    assert "set JAVA_HOME" in str(failed.value)
