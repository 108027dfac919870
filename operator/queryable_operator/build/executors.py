"""Build the executors of a rekey job: their StatefulSet, and what the job's pod needs beside itself.

Both are made from the recorded template of the job, when they are applied. So a change of the number of executors restarts
no node. An executor's pod is the job's, with another command and no check: it has the same user, settings, files and resources.
No pod calls the API server. Spark sends an executor its tasks, and with them the settings of Kafka's clients, over
connections that a secret made from the revision's token authenticates and encrypts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from queryable_app.contract import ENV_PREFIX, REKEY_BLOCKS_PORT, REKEY_PORT
from queryable_operator.build.children import child
from queryable_operator.build.workload import GROUP_KEY_FORMAT
from queryable_operator.spec import names
from queryable_operator.spec.observed import Manifest
from queryable_operator.spec.resource import View
from queryable_operator.spec.settings import OperatorSettings

CONTAINER: Final = "executor"
MODULE: Final = "queryable_app.ingest.rekey_executor"

_GRACE_SECONDS: Final = 5  # an executor ends at once
_HOSTS: Final = "kubernetes.io/hostname"
_ADDRESS: Final = {
    "name": f"{ENV_PREFIX}POD_ADDRESS",
    "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.podIP"}},
}


def driver_template(rekey_template: Manifest) -> Manifest:
    """Build the template of a job's pod that has executors."""
    container = _container(rekey_template)
    ports = [_port("driver", REKEY_PORT), _port("blocks", REKEY_BLOCKS_PORT)]
    with_address = {**container, "env": [*container["env"], _ADDRESS], "ports": ports}
    return {**rekey_template, "spec": {**rekey_template["spec"], "containers": [with_address]}}


def executor_stateful_set(
    view: View, revision: int, rekey_template: Manifest, replicas: int, settings: OperatorSettings
) -> Manifest:
    """Build the StatefulSet. Kubernetes replaces its pods in any order: the job begins a new run without them."""
    name = names.executors(view.name, revision)
    spec: dict[str, Any] = {
        "replicas": replicas,
        "serviceName": names.child(view.name, revision),
        "selector": {"matchLabels": dict(names.executor_selector(view.name, revision))},
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "RollingUpdate"},
        "template": _executor_template(view, revision, rekey_template, settings),
    }
    return child(view, revision, "StatefulSet", {"spec": spec}, name=name)


def _executor_template(
    view: View, revision: int, rekey_template: Manifest, settings: OperatorSettings
) -> Manifest:
    job, metadata = rekey_template["spec"], rekey_template["metadata"]
    selector = dict(names.executor_selector(view.name, revision))
    host = f"{names.rekey_job(view.name, revision)}.{view.namespace}.svc.{settings.cluster_domain}"
    container = _container(rekey_template)
    env = [variable for variable in container["env"] if variable["name"] != GROUP_KEY_FORMAT]
    spread = {
        "maxSkew": 1,
        "topologyKey": _HOSTS,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": selector},
    }
    spec = {
        **{name: value for name, value in job.items() if name != "initContainers"},
        "terminationGracePeriodSeconds": _GRACE_SECONDS,
        "topologySpreadConstraints": [spread],
        "containers": [
            {
                **container,
                "name": CONTAINER,
                "command": ["python", "-m", MODULE],
                "env": [*env, _ADDRESS, {"name": f"{ENV_PREFIX}REKEY_HOST", "value": host}],
                "ports": [_port("blocks", REKEY_BLOCKS_PORT)],
            }
        ],
    }
    labels = {label: value for label, value in metadata["labels"].items() if label != names.REKEY_LABEL}
    return {"metadata": {**metadata, "labels": {**labels, **selector}}, "spec": spec}


def _container(rekey_template: Manifest) -> Mapping[str, Any]:
    (container,) = rekey_template["spec"]["containers"]
    return dict(container)


def _port(name: str, port: int) -> Mapping[str, Any]:
    return {"name": name, "containerPort": port, "protocol": "TCP"}
