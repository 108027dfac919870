"""Build the pod template of a revision's rekey job, and its StatefulSet.

The pod is made from the nodes' template: it has their image, user, settings and files, and one container. It has no volume
claim, because the job keeps no state, and no label that a Service, a disruption budget or a spread constraint of nodes selects.
A StatefulSet starts the next pod when the last one has ended, so two jobs at once are rare; they would only cost time.

An init container checks the view with Spark, and reports the format of group keys, without which no node starts. Spark does it
once for a revision: the operator records the format in the ConfigMap, where the check of the next pod finds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from queryable_app.contract import ENV_PREFIX
from queryable_operator.build.children import child
from queryable_operator.build.workload import GROUP_KEY_FORMAT, ca_volume, pod_template, serve_secrets
from queryable_operator.spec import names
from queryable_operator.spec.observed import Manifest
from queryable_operator.spec.requirements import requirements
from queryable_operator.spec.resource import View
from queryable_operator.spec.settings import OperatorSettings

CONTAINER: Final = "rekey"
CHECK_CONTAINER: Final = "check"
MODULE: Final = "queryable_app.ingest.rekey"

_REPORT: Final = "/dev/termination-log"  # Kubernetes copies this file into the pod's status
_CHECK: Final = ("python", "-m", "queryable_app.ingest.check", "--report", _REPORT)

_GRACE_SECONDS: Final = 30
_DATA: Final = "data"
_OF_NODES: Final = ("topologySpreadConstraints", "affinity", "containers", "volumes")
_ENV_OF_NODES: Final = (f"{ENV_PREFIX}DRAIN_SECONDS", f"{ENV_PREFIX}WORKER_PORTS")


def rekey_template(
    view: View, revision: int, application_id: str, image: str, roll_hash: str, settings: OperatorSettings
) -> Manifest:
    """Build the pod template. `view` follows the spec that the revision records."""
    node = pod_template(view, revision, application_id, image, roll_hash, settings)
    spec = {name: value for name, value in node["spec"].items() if name not in _OF_NODES}
    # affinity between pods spreads nodes; it could leave the job without a host
    node_affinity = node["spec"].get("affinity", {}).get("nodeAffinity")
    spec |= {
        "terminationGracePeriodSeconds": _GRACE_SECONDS,
        **({"affinity": {"nodeAffinity": node_affinity}} if node_affinity else {}),
        "initContainers": [{**_container(view, node), "name": CHECK_CONTAINER, "command": list(_CHECK)}],
        "containers": [_container(view, node)],
        "volumes": _volumes(view, node),
    }
    own = {label: value for label, value in node["metadata"]["labels"].items() if not _is_ours(label)}
    labels = {**own, **names.labels(view.name), **names.rekey_selector(view.name, revision)}
    return {"metadata": {**node["metadata"], "labels": labels}, "spec": spec}


def rekey_stateful_set(view: View, revision: int, template: Manifest, replicas: int) -> Manifest:
    """Build the StatefulSet. Kubernetes replaces the pod after a change of the template, also one that never starts."""
    spec: dict[str, Any] = {
        "replicas": replicas,
        "serviceName": names.child(view.name, revision),
        "selector": {"matchLabels": dict(names.rekey_selector(view.name, revision))},
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "RollingUpdate"},
        "template": template,
    }
    name = names.rekey_job(view.name, revision)
    return child(view, revision, "StatefulSet", {"spec": spec}, name=name)


def _volumes(view: View, node: Manifest) -> list[Mapping[str, Any]]:
    """Return the nodes' volumes without their data and the Secrets of serve, and the CA of the nodes, which the job calls."""
    left_out = (_DATA, *serve_secrets(view))
    volumes = [volume for volume in node["spec"]["volumes"] if volume["name"] not in left_out]
    return [*volumes, *(() if (ca := ca_volume(view)) is None else (ca[0],))]


def _container(view: View, node: Manifest) -> Mapping[str, Any]:
    (ingest,) = (one for one in node["spec"]["containers"] if one["name"] == "ingest")
    return {
        **ingest,
        "name": CONTAINER,
        "command": ["python", "-m", MODULE],
        "env": [_optional(variable) for variable in ingest["env"] if variable["name"] not in _ENV_OF_NODES],
        "resources": requirements(view.raw, CONTAINER),
        # the end of the log, unless the process writes a message of its own
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            *(mount for mount in ingest["volumeMounts"] if mount["name"] != _DATA),
            *(() if (ca := ca_volume(view)) is None else (ca[1],)),
        ],
    }


def _optional(variable: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a variable without which the job starts too: the format of group keys, which its check finds out."""
    if variable["name"] != GROUP_KEY_FORMAT:
        return variable
    return {
        **variable,
        "valueFrom": {"configMapKeyRef": {**variable["valueFrom"]["configMapKeyRef"], "optional": True}},
    }


def _is_ours(label: str) -> bool:
    """Return whether the label may be in a selector of nodes."""
    return label.startswith(f"{names.GROUP}/")
