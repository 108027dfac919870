"""Cause faults on a node of a running system, and wait until the system has recovered."""

from __future__ import annotations

import os
import shutil
import signal

import httpx

from tests.integration.system import System
from tests.support.waiting import eventually

_ROLES = ("serve", "ingest")


def signal_to(system: System, node: int, number: signal.Signals) -> None:
    """Send the signal to all processes of the node, as a failure of its machine does."""
    for role in _ROLES:
        os.killpg(system.pid(role, node), number)


def end(system: System, node: int, number: signal.Signals) -> None:
    """End the node with this signal, and wait until the replacement processes answer."""
    pids = {role: system.pid(role, node) for role in _ROLES}
    signal_to(system, node, number)
    for role, pid in pids.items():
        eventually(f"{role} is replaced", lambda role=role, pid=pid: system.pid(role, node) != pid)  # type: ignore[misc]
    eventually("the node answers again", lambda: answers(system.url(node)))


def wipe(system: System, node: int) -> None:
    """Kill the node, delete its disk before it restarts, and wait until it answers."""
    url = system.url(node)
    system.process.send_signal(signal.SIGSTOP)
    try:
        signal_to(system, node, signal.SIGKILL)
        eventually("the node is unreachable", lambda: not answers(url))
        shutil.rmtree(system.data / "nodes" / str(node))
    finally:
        system.process.send_signal(signal.SIGCONT)
    eventually("the node answers again", lambda: answers(url))


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/livez", timeout=1, verify=False).status_code == 200
    except httpx.TransportError:
        return False


def wait_until_well(system: System, nodes: int) -> None:
    """Wait until every node streams, all replicas have caught up, and no node suspects another."""

    def well() -> bool:
        try:
            answered = [system.get("/v1/status", node) for node in range(nodes)]
        except httpx.TransportError:
            return False
        return all(
            answer.status_code == 200
            and (status := answer.json())["ingest"]["state"] == "streaming"
            and all(replica["phase"] == "caught-up" for replica in status["partitions"])
            and not any(peer["suspect"] for peer in status["peers"])
            for answer in answered
        )

    eventually(f"the system has recovered\n{system.tail()}", well, 90)
