"""Test nodes that start and stop with the placement: real serve processes, without Kafka and Java."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from queryable_app.local.cluster import LocalCluster
from queryable_app.local.data_directory import DataDirectory, opened
from queryable_app.local.desired_scale import DESIRED_SCALE_FILE, DesiredScale
from queryable_app.local.pods import NodeFailed, start_placement
from queryable_app.platform.processes import free_ports, stop
from tests.support.waiting import eventually

SPEC: dict[str, Any] = {"kafka": {"bootstrapServers": "127.0.0.1:1", "config": {}}, "topic": "users"}


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DataDirectory]:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with opened(tmp_path / "data") as directory:
        yield directory


@pytest.fixture
def cluster(data: DataDirectory) -> Iterator[LocalCluster]:
    """One node with four partitions."""
    desired = DesiredScale(1, 0)
    url = f"http://127.0.0.1:{free_ports(1)[0]}"
    placement = start_placement(None, "local.users.r1", 4, [url], desired)
    running = LocalCluster("users-r1", SPEC, data, placement, desired, port=0)
    try:
        yield running
    finally:
        stop(running.processes, 8)
        running.close()


def tick_until(what: str, cluster: LocalCluster, check: Callable[[], bool]) -> list[str]:
    """Advance the cluster until `check` is true, and return its lines."""
    lines: list[str] = []

    def checked() -> bool:
        if check():
            return True
        lines.extend(cluster.tick())
        return False

    eventually(what, checked, 40, story=lambda: f"{lines}; {cluster.describe()}")
    return lines


def announced(cluster: LocalCluster) -> list[str]:
    return [node["name"] for node in cluster.describe()["nodes"]]


def test_node_is_announced_once_it_answers(cluster: LocalCluster) -> None:
    """A node is not announced before, since scripts read the addresses and send requests at once."""
    assert announced(cluster) == []

    tick_until("the node answers", cluster, lambda: not cluster.starting)

    assert announced(cluster) == ["users-r1-0"]
    assert httpx.get(cluster.describe()["nodes"][0]["url"] + "/livez").is_success


def test_nodes_start_and_stop_with_the_desired_scale(cluster: LocalCluster, data: DataDirectory) -> None:
    """A new node builds replicas. When it is too many, it is no longer announced, then stopped, and its data is removed."""
    tick_until("the first node answers", cluster, lambda: cluster.describe()["placement"]["settled"])

    data.write(DESIRED_SCALE_FILE, DesiredScale(2, 0).to_json())
    tick_until("the second node answers", cluster, lambda: announced(cluster) == ["users-r1-0", "users-r1-1"])
    described = cluster.describe()["placement"]
    assert (described["nodes"], described["settled"], described["toBuild"]) == (2, False, 2)
    second = psutil.Process(cluster.describe()["nodes"][1]["pids"]["serve"])

    data.write(DESIRED_SCALE_FILE, DesiredScale(1, 0).to_json())
    lines = tick_until("settled", cluster, lambda: cluster.describe()["placement"]["settled"])

    assert "users-r1-1 hosts no replicas any more and is stopped" in lines
    assert announced(cluster) == ["users-r1-0"]
    assert not second.is_running()
    assert not data.pod_data(1).exists()


@pytest.mark.parametrize("text", ["{", "{}", '{"nodes": 0, "standby": 0}', '{"nodes": "x", "standby": 0}'])
def test_invalid_desired_scale_is_ignored(cluster: LocalCluster, data: DataDirectory, text: str) -> None:
    """If a file written by hand is not valid, the run keeps its scale."""
    (data.path / DESIRED_SCALE_FILE).write_text(text)
    tick_until("the node answers", cluster, lambda: not cluster.starting)

    assert cluster.desired == DesiredScale(1, 0)


def test_permanent_ingest_failure_ends_the_wait_for_a_node(cluster: LocalCluster) -> None:
    """The wait fails with the failure that ingest reports: here Java is missing."""
    (node,) = cluster.pods
    with httpx.Client(timeout=2, trust_env=False) as http:

        def wait() -> None:
            tick_until("ingest has failed", cluster, lambda: not node.not_ready(http))

        with pytest.raises(NodeFailed) as failed:
            wait()
    assert failed.value.failure.reason == "JavaMissing"
    assert "set JAVA_HOME" in str(failed.value)
