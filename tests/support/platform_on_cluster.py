"""Provide the platform of views on a cluster: an operator from the chart in a namespace of its own, and in another one a Kafka
in a pod, the views, and their clients in a pod of their own.

The clients' pod runs `tests/cluster/clients.py` by `kubectl exec`, so that the tests need to reach only the API server.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.cluster import Namespace
from tests.support.helm import CHART, helm
from tests.support.view_on_cluster import KAFKA_USERS, OPERATOR, RELEASE, SECONDS, Platform

CLIENTS = Path(__file__).parents[1] / "cluster" / "clients.py"

_RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}
_USER = {
    "runAsNonRoot": True,
    "runAsUser": 10001,
    "fsGroup": 10001,
    "seccompProfile": {"type": "RuntimeDefault"},
}


@contextmanager
def platform(namespace: Namespace, operators: Namespace, image: str, kafka_image: str) -> Iterator[Platform]:
    """Provide the platform until the end of the block, and then delete it with the remaining views."""
    repository, _, tag = image.rpartition(":")
    values = {
        "image": {"repository": repository, "tag": tag},
        "watchNamespaces": [namespace.name],
        "rbac": {"aggregateRoles": False},
        "crds": {"install": False},
    }
    here = Platform(namespace, operators, image)
    try:
        namespace.kubectl(
            "apply", "--filename", "-", stdin=json.dumps(_kafka_and_clients(image, kafka_image))
        )
        helm(
            "install", RELEASE, str(CHART), "--namespace", operators.name, "--values", "-",
            "--wait", f"--timeout={SECONDS:.0f}s",
            stdin=json.dumps(values), timeout=SECONDS + 10,
        )  # fmt: skip
        for where, what in ((namespace, "deploy/kafka"), (operators, OPERATOR)):
            where.kubectl("rollout", "status", what, f"--timeout={SECONDS:.0f}s", timeout=SECONDS + 10)
        namespace.kubectl(
            "wait", "--for=condition=Ready", "pod/clients", f"--timeout={SECONDS:.0f}s", timeout=SECONDS + 10
        )
        yield here
    finally:
        try:
            namespace.kubectl("delete", "qt", "--all", f"--timeout={SECONDS:.0f}s", timeout=SECONDS + 10)
        finally:
            namespace.release_resources()
            helm("uninstall", RELEASE, "--namespace", operators.name, "--ignore-not-found")


def _kafka_and_clients(image: str, kafka_image: str) -> Mapping[str, Any]:
    broker = {
        **_container("kafka", kafka_image, ["python", "/opt/kafka/broker.py"], "data", "/data"),
        "env": [
            {"name": "HOST", "value": "kafka"},
            {"name": "USERS", "value": json.dumps(KAFKA_USERS)},
            {"name": "DATA", "value": "/data/kafka"},
        ],
        "readinessProbe": {"tcpSocket": {"port": 9092}, "periodSeconds": 1},
        "resources": {"requests": {"cpu": "200m", "memory": "512Mi"}},
    }
    labels = {"app": "kafka"}
    kafka = {
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": _pod(broker, {"emptyDir": {}}, "data")},
    }
    code = {"clients.py": CLIENTS.read_text()}
    sleep = ["python", "-c", "import signal; signal.sigwait({signal.SIGTERM})"]
    reader = _container("clients", image, sleep, "code", "/clients")
    return {
        "apiVersion": "v1",
        "kind": "List",
        "items": [
            {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "kafka"},
             "spec": {"selector": labels, "ports": [
                 {"name": "any", "port": 9092}, {"name": "users", "port": 9094}]}},
            {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "kafka"}, "spec": kafka},
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "clients"}, "data": code},
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "clients"},
             "spec": _pod(reader, {"configMap": {"name": "clients"}}, "code")},
        ],
    }  # fmt: skip


def _container(name: str, image: str, command: list[str], volume: str, path: str) -> dict[str, Any]:
    mounts = [{"name": volume, "mountPath": path}, {"name": "tmp", "mountPath": "/tmp"}]
    return {
        "name": name,
        "image": image,
        "command": command,
        "securityContext": _RESTRICTED,
        "volumeMounts": mounts,
    }


def _pod(container: Mapping[str, Any], volume: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return {
        "securityContext": _USER,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 5,
        "containers": [container],
        "volumes": [{"name": name, **volume}, {"name": "tmp", "emptyDir": {}}],
    }
