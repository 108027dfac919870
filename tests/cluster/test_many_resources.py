"""Test that one operator reconciles many resources of a real API server, and what that costs."""

from __future__ import annotations

import json
import os
import time

import pytest

from tests.support.operator_in_namespace import Running, until

MANY = int(os.environ.get("QT_TEST_RESOURCES", "200"))


@pytest.mark.timeout(1800)
def test_many_resources_converge(running: Running) -> None:
    """Many resources converge, two hundred by default (QT_TEST_RESOURCES); the test prints duration, cost and memory."""
    for first in range(0, MANY, 50):
        resources = [running.resource(f"many-{n}") for n in range(first, min(MANY, first + 50))]
        many = json.dumps({"apiVersion": "v1", "kind": "List", "items": resources})
        running.namespace.kubectl("apply", "--filename", "-", stdin=many, timeout=300)
    running.start("--reconcile-seconds=10")
    os.sched_setaffinity(running.operator.popen.pid, {min(os.sched_getaffinity(0))})
    began = time.monotonic()
    until(
        lambda: (
            {len(running.live(kind)) for kind in ("statefulset", "configmap", "secret", "networkpolicy")}
            == {MANY}
        ),
        lambda: running.operator.log[-3000:],
        900,
    )
    took, cpu = time.monotonic() - began, running.operator.cpu_seconds()
    idle, per_second = _cost_of_settled_resources(running)
    print(
        f"\n{MANY} resources on one core: {took:.0f} s, {cpu:.1f} s of CPU; "
        f"settled: {100 * idle:.0f} % of a core, {per_second:.0f} requests/s, {running.operator.rss_mib():.0f} MiB"
    )
    assert len(running.live("statefulset")) == MANY
    assert running.operator.end() == 0


def _cost_of_settled_resources(running: Running, window_seconds: float = 20) -> tuple[float, float]:
    """Return the share of a core and the requests per second in the first window without a write."""
    deadline = time.monotonic() + 600
    while True:
        writes, requests = len(running.proxy.writes), len(running.proxy.requests)
        cpu_seconds = running.operator.cpu_seconds()
        time.sleep(window_seconds)  # the measured time, two reconcile intervals
        if len(running.proxy.writes) == writes:
            break
        assert time.monotonic() < deadline, str(running.proxy.writes[-10:])
    idle = (running.operator.cpu_seconds() - cpu_seconds) / window_seconds
    return idle, (len(running.proxy.requests) - requests) / window_seconds
