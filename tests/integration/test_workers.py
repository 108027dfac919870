"""Test pods with workers under Spark, a broker, reads and writes: a worker is killed, and pods come and go."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.integration import topics
from tests.integration.faults import answers, wait_until_well
from tests.integration.readers import PARTITIONS, Producing, Readers
from tests.integration.system import System, resource, running
from tests.integration.test_survival import assert_all_right, report
from tests.support.fold import LogRecord, fold
from tests.support.processes import worker_pids
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(500)

TOPIC = "shared_by_workers"
WORKERS = 2


def worker_pid(system: System, node: int) -> int:
    """Return the process id of the worker with this ordinal, or 0 if it does not run."""
    return worker_pids(system.pid("serve", node)).get(node, 0)


def assert_nodes_have_the_fold(system: System, nodes: int, log: Sequence[LogRecord]) -> None:
    expected = {k.decode(): json.loads(row.value) for k, row in fold(log).items() if row.value is not None}
    for node in range(nodes):
        assert {item["key"]: item["value"] for item in system.items(node=node)} == expected


def starts_of_queries(system: System, nodes: int) -> list[int]:
    return [int(system.status(node)["ingest"]["starts"]) for node in range(nodes)]


def test_killed_worker_costs_no_read_and_no_record(kafka: Any, tmp_path: Path) -> None:
    """After kill -9 of a worker no read through the other nodes fails, strong ones included; the worker starts again with its
    rows, its query resumes and those of the other workers go on, and all nodes have the fold of the topic. Then a pod is added
    and removed."""
    producing = Producing(kafka.bootstrap, TOPIC)
    document = resource(TOPIC, kafka.bootstrap, replicas=2, standbyReplicas=1, serve={"workers": WORKERS})
    with running(document, tmp_path, nodes=2) as system:
        nodes = system.described()["nodes"]
        assert [node["pod"][-1] for node in nodes] == ["0", "0", "1", "1"]
        assert len({node["pids"]["ingest"] for node in nodes}) == 2  # one JVM for each pod
        for pod in (nodes[:2], nodes[2:]):  # no pod has a partition twice
            hosted = [
                p["partition"]
                for n in pod
                for p in system.http.get(n["url"] + "/v1/status").json()["partitions"]
            ]
            assert sorted(hosted) == list(range(PARTITIONS))
        wait_until_well(system, 4)
        starts = starts_of_queries(system, 4)

        readers = Readers([node["url"] for node in nodes], producing)
        with producing.going_on(), readers.reading() as seen:
            with readers.around(system.url(0)):
                began, killed = time.monotonic(), worker_pid(system, 0)
                os.kill(killed, signal.SIGKILL)
                eventually("another process", lambda: worker_pid(system, 0) not in (0, killed))
                eventually("the worker answers again", lambda: answers(system.url(0)))
            wait_until_well(system, 4)
        report("worker killed", seen, began)
        log = topics.records(kafka.bootstrap, TOPIC)
        assert_all_right(seen, log)
        assert_nodes_have_the_fold(system, 4, log)
        after = starts_of_queries(system, 4)
        assert after[0] > 0
        assert after[1:] == starts[1:], system.node_logs()

        for pods in (3, 2):
            command = [
                sys.executable,
                "-m",
                "queryable_app.cli",
                "scale",
                str(pods),
                "--data",
                str(system.data),
            ]
            done = subprocess.run(command, capture_output=True, text=True, timeout=200)
            assert done.returncode == 0, f"{done.stderr}\n{system.tail()}"
            assert len(system.described()["nodes"]) == pods * WORKERS
        assert_nodes_have_the_fold(system, 4, log)
