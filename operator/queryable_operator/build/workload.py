"""Build the pod template of a revision and its StatefulSet.

A pod has two containers of one image that share a data volume, a socket directory and their environment. They run under the
restricted Pod Security Standard with a read-only root file system.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from queryable_app.config.tls import CA_FILE
from queryable_app.contract import DEFAULT_PORT, ENV_PREFIX, SERVE_ENV
from queryable_operator.build.children import child
from queryable_operator.build.policies import TOKEN_KEY
from queryable_operator.build.settings_map import GROUP_KEY_FORMAT_KEY, PLACEMENT_KEY, SPEC_KEY
from queryable_operator.spec import names
from queryable_operator.spec.observed import Manifest
from queryable_operator.spec.pods import PodIndex, PodLayout
from queryable_operator.spec.quantity import quantity
from queryable_operator.spec.rekeying import is_rekeyed
from queryable_operator.spec.requirements import requirements
from queryable_operator.spec.resource import View
from queryable_operator.spec.settings import OperatorSettings

ROLL_HASH_ANNOTATION: Final = f"{names.GROUP}/roll-hash"

_USER: Final = 10001
_DRAIN_SECONDS: Final = 10  # time for Services and peers to notice
_GRACE_SECONDS: Final = 45  # the drain, and then the longest requests

_VIEW_DIR: Final = "/etc/qt/view"
_TOKEN_DIR: Final = "/etc/qt/token"  # noqa: S105  (a directory)
_KAFKA_DIR: Final = "/etc/qt/kafka"
_AUTH_DIR: Final = "/etc/qt/auth"
_TLS_DIR: Final = "/etc/qt/tls"
NODE_TLS: Final = "node-tls"
"""The volume with the certificate between nodes."""

_NODE_TLS_DIR: Final = "/etc/qt/node-tls"
_DATA_DIR: Final = "/var/lib/qt"
_RUN_DIR: Final = "/run/qt"
_GROUP_READS: Final = 0o440
_CLAIM: Final = "data"
_APPLICATION_ID: Final = "APPLICATION_ID"
GROUP_KEY_FORMAT: Final = f"{ENV_PREFIX}GROUP_KEY_FORMAT"


def pod_template(
    view: View, revision: int, application_id: str, image: str, roll_hash: str, settings: OperatorSettings
) -> Manifest:
    """Build the pod template. `view` follows the spec that the revision records."""
    pod_settings = view.raw.get("podTemplate", {})
    spec: dict[str, Any] = {
        "serviceAccountName": view.name,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": _GRACE_SECONDS,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "topologySpreadConstraints": _spread(view, revision),
        "containers": _containers(view, revision, application_id, image, settings),
        "volumes": _volumes(view, revision),
    }
    for field in _AS_GIVEN:
        if pod_settings.get(field):
            spec[field] = pod_settings[field]
    speaks_tls = {} if view.spec.tls is None else {names.TLS_LABEL: "true"}
    labels = {**names.revision_labels(view.name, revision), **speaks_tls}
    metadata = {
        "labels": {**pod_settings.get("labels", {}), **labels},
        "annotations": {**pod_settings.get("annotations", {}), ROLL_HASH_ANNOTATION: roll_hash},
    }
    return {"metadata": metadata, "spec": spec}


_AS_GIVEN: Final = ("nodeSelector", "affinity", "tolerations", "priorityClassName", "imagePullSecrets")


def application_id_in(template: Any) -> str | None:
    """Return the application id in a template's environment, or None if the operator did not build the template."""
    try:
        (found,) = {
            variable["value"]
            for variable in template["spec"]["containers"][0]["env"]
            if variable["name"] == ENV_PREFIX + _APPLICATION_ID
        }
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return None
    return found if isinstance(found, str) else None


def stateful_set(
    view: View, revision: int, template: Manifest, replicas: int, live: Manifest | None = None
) -> Manifest:
    """Build the StatefulSet. Claim templates are immutable, so they keep the volume size of the `live` one."""
    spec: dict[str, Any] = {
        "replicas": replicas,
        "serviceName": names.child(view.name, revision),
        "selector": {"matchLabels": dict(names.selector(view.name, revision))},
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "OnDelete"},
        # only the operator deletes volumes, never the deletion of the StatefulSet
        "persistentVolumeClaimRetentionPolicy": {"whenScaled": "Retain", "whenDeleted": "Retain"},
        "template": template,
    }
    if not view.raw["storage"]["ephemeral"]:
        spec["volumeClaimTemplates"] = [_claim(view, revision, live)]
    return child(view, revision, "StatefulSet", {"spec": spec})


def larger_claim(view: View, revision: int, pod: PodIndex) -> Manifest:
    """Build a patch that enlarges an existing volume claim to the desired size."""
    metadata = {
        "name": names.volume_claim(view.name, revision, pod),
        "namespace": view.namespace,
    }
    spec = {"resources": {"requests": {"storage": view.raw["storage"]["size"]}}}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


def _claim(view: View, revision: int, live: Manifest | None) -> Manifest:
    storage = view.raw["storage"]
    size = storage["size"]
    if live is not None:
        there = live["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"]
        size = size if quantity(size) == quantity(there) else there
    spec: dict[str, Any] = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": size}},
    }
    if "storageClassName" in storage:
        spec["storageClassName"] = storage["storageClassName"]
    metadata = {"name": _CLAIM, "labels": dict(names.revision_labels(view.name, revision))}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


def _containers(
    view: View, revision: int, application_id: str, image: str, settings: OperatorSettings
) -> Sequence[Mapping[str, Any]]:
    env = _env(view, revision, application_id, settings)
    mounts = [
        {"name": "view", "mountPath": _VIEW_DIR, "readOnly": True},
        {"name": "token", "mountPath": _TOKEN_DIR, "readOnly": True},
        {"name": _CLAIM, "mountPath": _DATA_DIR},
        {"name": "run", "mountPath": _RUN_DIR},
        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108  (the pod's own)
    ]
    if "secretRef" in view.raw["kafka"]:
        mounts.append({"name": "kafka", "mountPath": _KAFKA_DIR, "readOnly": True})

    def container(name: str) -> dict[str, Any]:
        return {
            "name": name,
            "image": image,
            "command": ["python", "-m", f"queryable_app.{name}"],
            "env": env,
            "resources": requirements(view.raw, name),
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "readOnlyRootFilesystem": True,
            },
            "volumeMounts": mounts,
        }

    ports = [
        {"name": name, "containerPort": port, "protocol": "TCP"}
        for name, port in {"http": DEFAULT_PORT, **PodLayout.of(view.raw).worker_ports}.items()
    ]
    serve = container("serve")
    given = {variable["name"] for variable in env}
    serve["env"] = [*env, *({"name": k, "value": v} for k, v in SERVE_ENV.items() if k not in given)]
    # ingest verifies no tokens and accepts no connections
    serve["volumeMounts"] = [
        *mounts,
        *({"name": name, "mountPath": _DIRECTORIES[name], "readOnly": True} for name in serve_secrets(view)),
    ]
    return [serve | {"ports": ports} | _probes(PodLayout.of(view.raw)), container("ingest")]


_DIRECTORIES: Final = {"auth": _AUTH_DIR, "tls": _TLS_DIR, NODE_TLS: _NODE_TLS_DIR}


def serve_secrets(view: View) -> Mapping[str, str]:
    """Return the Secrets that only serve reads, by volume. Nodes follow their changes, so they restart no pods."""
    found = {}
    if (name := _auth_secret(view)) is not None:
        found["auth"] = name
    if view.spec.tls is not None and view.spec.tls.secret_name:
        found["tls"] = view.spec.tls.secret_name
    if view.spec.tls is not None:
        found[NODE_TLS] = names.node_certificate(view.name)
    return found


def ca_volume(view: View) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
    """Return a volume with the CA of the nodes and no key, and its mount: for containers that call nodes. None: no TLS."""
    if view.spec.tls is None:
        return None
    secret = {
        "secretName": names.node_certificate(view.name),
        "defaultMode": _GROUP_READS,
        "items": [{"key": CA_FILE, "path": CA_FILE}],
    }
    mount = {"name": NODE_TLS, "mountPath": _NODE_TLS_DIR, "readOnly": True}
    return {"name": NODE_TLS, "secret": secret}, mount


def _auth_secret(view: View) -> str | None:
    """Return the name of the Secret that tokens are signed with."""
    name: str | None = view.raw.get("auth", {}).get("jwt", {}).get("secretRef", {}).get("name")
    return name


def _probe(
    path: str, scheme: str, period_seconds: int, timeout_seconds: int, failures: int
) -> Mapping[str, Any]:
    return {
        "httpGet": {"path": path, "port": "http", "scheme": scheme.upper()},
        "periodSeconds": period_seconds,
        "timeoutSeconds": timeout_seconds,
        "failureThreshold": failures,
    }


def _probes(layout: PodLayout) -> dict[str, Any]:
    """Return the probes. A node with many replicas opens slowly, and a busy node is not a dead one."""
    scheme = layout.scheme
    return {
        "startupProbe": _probe("/livez", scheme, period_seconds=1, timeout_seconds=1, failures=300),
        "livenessProbe": _probe("/livez", scheme, period_seconds=10, timeout_seconds=5, failures=6),
        "readinessProbe": _probe("/readyz", scheme, period_seconds=2, timeout_seconds=2, failures=2),
    }


def _env(
    view: View, revision: int, application_id: str, settings: OperatorSettings
) -> Sequence[Mapping[str, Any]]:
    # Kubernetes substitutes the pod's name for $(QT_NAME)
    layout = PodLayout.of(view.raw)
    url = names.advertised_url(
        view.namespace, view.name, revision, 0, settings.cluster_domain, scheme=layout.scheme
    )
    values = {
        _APPLICATION_ID: application_id,
        "BOOTSTRAP_SERVERS": view.spec.bootstrap_servers,
        "ADVERTISED_URL": url.replace(names.pod(view.name, revision, 0), f"$({ENV_PREFIX}NAME)", 1),
        "SPEC_PATH": f"{_VIEW_DIR}/{SPEC_KEY}",
        "PLACEMENT_PATH": f"{_VIEW_DIR}/{PLACEMENT_KEY}",
        "INTERNAL_TOKEN_PATH": f"{_TOKEN_DIR}/{TOKEN_KEY}",
        "DATA_DIR": _DATA_DIR,
        "RUN_DIR": _RUN_DIR,
        "DRAIN_SECONDS": str(_DRAIN_SECONDS),
    }
    if own_ports := layout.ports_text:
        values["WORKER_PORTS"] = own_ports
    if "secretRef" in view.raw["kafka"]:
        values["KAFKA_SECRET_DIR"] = _KAFKA_DIR
    if _auth_secret(view) is not None:
        values["AUTH_SECRET_DIR"] = _AUTH_DIR
    if view.spec.tls is not None:
        values["TLS_DIR"] = _TLS_DIR if view.spec.tls.secret_name else _NODE_TLS_DIR
        values["NODE_TLS_DIR"] = _NODE_TLS_DIR
        values["NODE_TLS_NAME"] = names.node_tls_name(view.namespace, view.name)
    return [
        _from_pod("NAME", "metadata.name"),
        _from_pod("ORDINAL", "metadata.labels['apps.kubernetes.io/pod-index']"),
        *({"name": ENV_PREFIX + name, "value": value} for name, value in values.items()),
        *([_group_key_format(view, revision)] if is_rekeyed(view.raw) else []),
        *view.raw.get("podTemplate", {}).get("env", []),
    ]


def _from_pod(name: str, path: str) -> Mapping[str, Any]:
    return {
        "name": ENV_PREFIX + name,
        "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}},
    }


def _group_key_format(view: View, revision: int) -> Mapping[str, Any]:
    """Return the variable that no container starts without: the rekey job finds its value, and the operator records it."""
    key = {"name": names.child(view.name, revision), "key": GROUP_KEY_FORMAT_KEY}
    return {"name": GROUP_KEY_FORMAT, "valueFrom": {"configMapKeyRef": key}}


def _volumes(view: View, revision: int) -> Sequence[Mapping[str, Any]]:
    of_revision = names.child(view.name, revision)
    files = [{"key": key, "path": key} for key in (SPEC_KEY, PLACEMENT_KEY)]
    volumes: list[Mapping[str, Any]] = [
        {"name": "view", "configMap": {"name": of_revision, "items": files}},
        {"name": "token", "secret": {"secretName": of_revision, "defaultMode": _GROUP_READS}},
        {"name": "run", "emptyDir": {"sizeLimit": "16Mi"}},
        {"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}},
    ]
    secrets = dict(serve_secrets(view))
    if (kafka := view.raw["kafka"].get("secretRef")) is not None:
        secrets = {"kafka": kafka["name"], **secrets}
    for name, secret_name in secrets.items():
        volumes.append({"name": name, "secret": {"secretName": secret_name, "defaultMode": _GROUP_READS}})
    storage = view.raw["storage"]
    if storage["ephemeral"]:
        volumes.append({"name": _CLAIM, "emptyDir": {"sizeLimit": storage["size"]}})
    return volumes


def _spread(view: View, revision: int) -> Sequence[Mapping[str, Any]]:
    """Spread pods over hosts and zones where possible. A constraint without a label selector gets this revision's."""
    ours = {"labelSelector": {"matchLabels": dict(names.selector(view.name, revision))}}
    given = view.raw.get("podTemplate", {}).get("topologySpreadConstraints")
    if given is None:
        given = [
            {"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "ScheduleAnyway"}
            for key in ("topology.kubernetes.io/zone", "kubernetes.io/hostname")
        ]
    return [ours | constraint for constraint in given]
