"""Test a view whose pods have two workers, in a cluster: each is a node, and the others survive the death of one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial

import pytest

from tests.support.view_on_cluster import SMALL, Platform, ViewOnCluster, available_view

pytestmark = pytest.mark.timeout(900)

WORKERS = """
import json
from pathlib import Path
found = {}
for directory in Path("/proc").iterdir():
    if directory.name.isdigit():
        variables = dict(entry.partition("=")[::2] for entry in (directory / "environ").read_text().split(chr(0)))
        if "." in variables.get("QT_NAME", ""):
            found[variables["QT_NAME"]] = int(directory.name)
print(json.dumps(found))
"""
KILL = "import os, signal, sys; os.kill(int(sys.argv[1]), signal.SIGKILL)"


@pytest.fixture(scope="module")
def view(platform: Platform) -> Iterator[ViewOnCluster]:
    spec = {**SMALL, "replicas": 2, "standbyReplicas": 1, "serve": {"workers": 2}}
    with available_view(platform, "workers", spec) as view:
        view.wait_until_settled()
        yield view


def workers(view: ViewOnCluster, ordinal: int) -> dict[str, int]:
    """Return the processes of a pod's workers by name."""
    found: dict[str, int] = json.loads(view.execute(ordinal, "serve", "python", "-c", WORKERS))
    return found


def test_every_worker_is_a_node(view: ViewOnCluster) -> None:
    """Four nodes in two pods host the replicas, two of a partition never in one pod, and each answers at its own port."""
    placement = view.placement()

    assert [address.rpartition(":")[2] for address in placement["addresses"]] == ["8081", "8082"] * 2
    assert all({ordinal // 2 for ordinal in serving} == {0, 1} for serving in placement["serving"])
    assert view.status["nodes"] == "2/2"
    view.platform.produce(view.topic, {"one": '{"n": 1}'})
    for address in placement["addresses"]:
        answers = view.platform.clients("get", address, "one")
        assert [(answer["status"], answer["value"]) for answer in answers] == [(200, {"n": 1})]


def test_killed_worker_costs_no_read(view: ViewOnCluster) -> None:
    """No read of the Python client fails when a worker is killed; the worker starts again, and its pod does not."""
    pods, before = view.uids(), workers(view, 0)
    containers = containers_of(view)
    with view.no_read_fails("read-with-client"):
        for name in sorted(before):
            view.execute(0, "serve", "python", "-c", KILL, str(before[name]))
            view.platform.eventually(f"{name} runs again", partial(runs_again, view, name, before[name]))
            view.wait_until_settled()
    assert workers(view, 0).keys() == before.keys()
    assert (view.uids(), containers_of(view)) == (pods, containers)


def runs_again(view: ViewOnCluster, name: str, pid: int) -> bool:
    return workers(view, 0).get(name, pid) != pid


def containers_of(view: ViewOnCluster) -> list[str]:
    """Return the running containers of the first pod."""
    return [status["containerID"] for status in view.pods()[view.pod(0)]["status"]["containerStatuses"]]


def test_pods_with_one_worker_take_over(view: ViewOnCluster) -> None:
    """Another number of workers makes a revision that takes over without a failed read."""
    revision = int(view.active[1:])
    with view.no_read_fails():
        view.patch(serve={"workers": 1})
        view.platform.eventually("the revision is active", lambda: view.active == f"r{revision + 1}")
    assert [address.rpartition(":")[2] for address in view.placement()["addresses"]] == ["8080"] * 2
