"""Test nodes that start and stop with the placement: real serve processes, without Kafka and Java."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

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


@pytest.fixture
def pods(data: DataDirectory) -> Iterator[LocalCluster]:
    """One pod with two workers, and four partitions."""
    desired = DesiredScale(1, 0)
    ports = free_ports(3)
    front, *own = (f"http://127.0.0.1:{port}" for port in ports)
    placement = start_placement(None, "local.users.r1", 4, own, desired, workers=2)
    running = LocalCluster("users-r1", SPEC, data, placement, desired, port=0, fronts=[front], workers=2)
    try:
        yield running
    finally:
        stop(running.processes, 8)
        running.close()


def test_every_worker_is_a_node_of_the_run(pods: LocalCluster) -> None:
    """`run.json` lists each worker with its own address, its pod, and the address that the pod's workers share."""
    tick_until("the workers answer", pods, lambda: not pods.starting)

    nodes = pods.describe()["nodes"]
    assert [(node["name"], node["pod"]) for node in nodes] == [
        ("users-r1-0.0", "users-r1-0"),
        ("users-r1-0.1", "users-r1-0"),
    ]
    assert len({node["front"] for node in nodes}) == 1
    assert len({node["pids"]["serve"] for node in nodes}) == 1
    for node in nodes:
        assert httpx.get(node["url"] + "/v1/status").json()["name"] == node["name"]
        assert httpx.get(node["front"] + "/livez").is_success


def test_scaling_adds_and_removes_whole_pods(pods: LocalCluster, data: DataDirectory) -> None:
    """A new pod brings all of its workers, and is stopped and its data removed once none of them hosts a replica."""
    tick_until("the first pod answers", pods, lambda: pods.describe()["placement"]["settled"])

    data.write(DESIRED_SCALE_FILE, DesiredScale(2, 0).to_json())
    tick_until("the second pod answers", pods, lambda: len(announced(pods)) == 4)
    second = psutil.Process(pods.describe()["nodes"][2]["pids"]["serve"])
    workers = second.children()
    assert len(workers) == 2

    data.write(DESIRED_SCALE_FILE, DesiredScale(1, 0).to_json())
    lines = tick_until("settled", pods, lambda: pods.describe()["placement"]["settled"])

    assert "users-r1-1 hosts no replicas any more and is stopped" in lines
    assert announced(pods) == ["users-r1-0.0", "users-r1-0.1"]
    assert not any(process.is_running() for process in (second, *workers))
    assert not data.pod_data(1).exists()


@given(
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(1, 24),
    st.data(),
)
def test_replicas_of_a_partition_are_in_different_pods(
    pods: int, workers: int, partitions: int, drawn: st.DataObject
) -> None:
    """The workers of a pod are lost together, so no partition has two replicas in one pod."""
    desired = DesiredScale(pods, drawn.draw(st.integers(0, pods - 1)))
    urls = [f"http://127.0.0.1:{20_000 + node}" for node in range(pods * workers)]

    placement = start_placement(None, "local.users.r1", partitions, urls, desired, workers)

    for nodes in placement.serving:
        assert len({node // workers for node in nodes}) == len(nodes) == desired.replicas
