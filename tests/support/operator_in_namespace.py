"""Run the operator as a process against a real API server, for one namespace."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from queryable_operator.spec import names
from tests.support.cluster import Namespace
from tests.support.counting_proxy import CountingProxy
from tests.support.operator_process import OperatorProcess, operator_process
from tests.support.waiting import eventually

TOPIC = "operator-api"
KINDS = (
    "configmap",
    "networkpolicy",
    "poddisruptionbudget",
    "secret",
    "service",
    "serviceaccount",
    "statefulset",
)
_OF_REVISION = {"configmap", "poddisruptionbudget", "secret", "service", "statefulset"}

_PASSES = 'qt_reconcile_total{result="ok"}'


class Running:
    """Combine one namespace, its own operator, and requests to the API server."""

    def __init__(self, namespace: Namespace, proxy: CountingProxy, log: Path, bootstrap: str) -> None:
        self.namespace, self.proxy, self.bootstrap = namespace, proxy, bootstrap
        self._log = log
        self._starts = 0
        self._operators = ExitStack()
        self.operator: OperatorProcess

    def start(self, *options: str, prelude: str = "") -> OperatorProcess:
        options = (f"--namespaces={self.namespace.name}", "--reconcile-seconds=1", *options)
        self._starts += 1
        log = self._log.with_name(f"operator-{self._starts}.log")
        self.operator = self._operators.enter_context(
            operator_process(log, self.proxy.kubeconfig, *options, prelude=prelude)
        )
        return self.operator

    def close(self) -> None:
        self._operators.close()

    def resource(self, name: str, **spec: Any) -> dict[str, Any]:
        """Return a resource whose pods stay unschedulable, so that only objects matter."""
        small = {
            "kafka": {"bootstrapServers": self.bootstrap},
            "topic": TOPIC,
            "storage": {"ephemeral": True},
            "podTemplate": {"nodeSelector": {"queryabletopics.io/test": "nowhere"}},
        }
        return {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {"name": name},
            "spec": {**small, **spec},
        }

    def apply(self, name: str, **spec: Any) -> None:
        resource = self.resource(name, **spec)
        self.namespace.kubectl("apply", "--filename", "-", stdin=json.dumps(resource))

    def live(self, kind: str) -> dict[str, dict[str, Any]]:
        """Return the objects with our label, by name."""
        ours = {"labelSelector": names.VIEW_LABEL} if kind != "qt" else {}
        items = self.namespace.listed(kind, **ours)["items"]
        return {item["metadata"]["name"]: item for item in items}

    def missing(self, view: str) -> set[str]:
        """Return the children that a view needs and that do not exist."""
        wanted = {(kind, f"{view}-r1") for kind in _OF_REVISION}
        wanted |= {(kind, view) for kind in ("service", "networkpolicy", "serviceaccount")}
        there = {(kind, name) for kind in KINDS for name in self.live(kind)}
        return {f"{kind}/{name}" for kind, name in wanted - there}

    def settled(self, view: str) -> None:
        until(
            lambda: not self.missing(view),
            lambda: f"missing {self.missing(view)}\n{self.operator.log[-3000:]}",
        )

    def runs(self) -> bool:
        assert self.operator.popen.poll() is None, self.operator.log[-3000:]
        return True

    def contents(self) -> dict[tuple[str, str], dict[str, Any]]:
        """Return the resource, its children and their pods without what the cluster's own controllers write.

        These controllers write the status of a child at a time of their own, minutes later on a busy cluster.
        """
        return {
            (kind, name): live if kind == "qt" else _without_status(live)
            for kind in (*KINDS, "qt", "pod")
            for name, live in self.live(kind).items()
        }

    def passes(self, count: int) -> None:
        """Wait until this many more reconcile passes have ended."""
        before = self.operator.metrics().get(_PASSES, 0.0)
        until(
            lambda: self.operator.metrics().get(_PASSES, 0.0) >= before + count,
            lambda: self.operator.log[-3000:],
        )

    def quiet(self) -> None:
        """Wait until a few reconcile passes have ended without a write and without another pod."""

        def changes_nothing() -> bool:
            before = len(self.proxy.writes), self.contents()
            self.passes(4)
            return (len(self.proxy.writes), self.contents()) == before

        until(changes_nothing, lambda: str(self.proxy.writes[-10:]), 180)

    def events(self, reason: str) -> list[str]:
        items = self.namespace.listed("event", fieldSelector=f"reason={reason}")["items"]
        return [item["message"] for item in items]


def _without_status(live: dict[str, Any]) -> dict[str, Any]:
    metadata = live["metadata"].items()
    kept = {name: value for name, value in metadata if name not in ("resourceVersion", "managedFields")}
    return {**live, "metadata": kept, "status": None}


def until(condition: Callable[[], object], story: Callable[[], str], seconds: float = 60) -> None:
    eventually("the cluster is in the desired state", condition, seconds, story=story)
