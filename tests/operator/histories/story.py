"""Provide the steps of the stories in the simulated cluster."""

from __future__ import annotations

import random
from typing import Any

from queryable_operator.report.conditions import conditions_by_type
from queryable_operator.spec.observed import Ref
from tests.operator.histories.api import LiveRevision
from tests.operator.histories.cluster import Cluster, SimulatedHost, is_ready
from tests.operator.histories.guarantees import Guarantees
from tests.operator.histories.history import History, resource
from tests.operator.histories.operator import Operator


def begun(on: Cluster | None = None, **spec: Any) -> History:
    """Return a resource that no operator has seen yet."""
    hosts = {f"host-{n}": SimulatedHost(f"zone-{n % 2}") for n in range(5)}
    cluster = on or Cluster(random.Random(7), hosts)
    operator = Operator(cluster, resource(**{"replicas": 3, "standbyReplicas": 1, **spec}))
    history = History(cluster.random, cluster, operator, Guarantees(cluster, operator))
    operator.watcher = history.guarantees.watch
    return history


def settled(on: Cluster | None = None, **spec: Any) -> History:
    history = begun(on, **spec)
    history.settle()
    history.operator.events.clear()
    return history


def change(history: History, **fields: Any) -> None:
    history.operator.resource["spec"].update(fields)
    history.changed()


def until_phase(history: History, phase: str) -> None:
    for _ in range(300):
        history.run_pass()
        if history.operator.resource["status"]["phase"] == phase:
            return
        history.pass_time(1)
    raise AssertionError(f"the phase {phase} is never reached: {history.operator.resource['status']}")


def status(history: History) -> Any:
    return history.operator.resource["status"]


def live(history: History, kind: str, name: str) -> LiveRevision:
    return history.cluster.api.objects[Ref(kind, name)]


def reasons(history: History) -> list[str]:
    return [event.reason for event in history.operator.events]


def condition(history: History, kind: str) -> tuple[str, str]:
    entry = conditions_by_type(status(history))[kind]
    return entry["status"], entry["reason"]


def is_gone_after(history: History, seconds: int) -> bool:
    for _ in range(0, seconds, 4):
        history.pass_time(4)
        history.run_pass()
    return history.operator.gone


def pods_ready(history: History) -> set[str]:
    return {pod["metadata"]["name"] for pod in history.cluster.api.of("Pod") if is_ready(pod)}
