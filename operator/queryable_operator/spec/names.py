"""Build every name, in Kubernetes and in Kafka. No other file puts a name together."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from queryable_app.config import rekey
from queryable_app.contract import DEFAULT_PORT

GROUP: Final = "queryabletopics.io"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "QueryableTopic"
PLURAL: Final = "queryabletopics"

FIELD_MANAGER: Final = "queryable-topics-operator"
FINALIZER: Final = f"{GROUP}/cleanup"

VIEW_LABEL: Final = f"{GROUP}/view"
"""On every child: the name of its resource."""

REVISION_LABEL: Final = f"{GROUP}/revision"
"""On every child of one revision, for example `r3`."""

REKEY_LABEL: Final = f"{GROUP}/rekey"
"""On the pod of a rekey job, in place of `REVISION_LABEL`: its revision. No selector of nodes matches it."""

EXECUTOR_LABEL: Final = f"{GROUP}/executor"
"""On the pods of a rekey job's executors, in place of `REVISION_LABEL`: their revision. No other selector matches it."""

TLS_LABEL: Final = f"{GROUP}/tls"
"""On the pods of nodes that speak TLS: `true`. Prometheus then scrapes them over HTTPS."""

OPERATOR_LABELS: Final = {
    "app.kubernetes.io/part-of": "queryable-topics",
    "app.kubernetes.io/component": "operator",
}
"""On the operator's own pods, whatever the chart's release is called."""

DEAD_LETTER_SUFFIX: Final = ".dead-letter"
"""The end of a dead-letter topic's name, after the application id."""

REKEY_SUFFIX: Final = rekey.internal_topic("")
"""The end of an internal topic's name, after the application id."""

_REVISION: Final = re.compile(r"r([1-9][0-9]{0,5})")
_JOB: Final = "-rekey"
_EXECUTORS: Final = "-executor"


def revision_text(number: int) -> str:
    return f"r{number}"


def revision_number(text: str | None) -> int | None:
    """Return the number in a revision's name, or None if the text is no such name."""
    match = _REVISION.fullmatch(text or "")
    return int(match[1]) if match else None


def child(view: str, revision: int) -> str:
    """Return the name of a revision's StatefulSet, headless Service, ConfigMap, token Secret and PodDisruptionBudget."""
    return f"{view}-{revision_text(revision)}"


def rekey_job(view: str, revision: int) -> str:
    """Return the name of the StatefulSet of a revision's rekey job, and of the Service at which its executors connect."""
    return f"{child(view, revision)}{_JOB}"


def rekey_pod(view: str, revision: int) -> str:
    return f"{rekey_job(view, revision)}-0"


def revision_of_rekey_job(view: str, name: str) -> int | None:
    """Return the revision whose rekey job has a StatefulSet with this name, or None."""
    return _revision_before(_JOB, view, name)


def executors(view: str, revision: int) -> str:
    """Return the name of the StatefulSet of the executors of a revision's rekey job."""
    return f"{child(view, revision)}{_EXECUTORS}"


def executor_pod(view: str, revision: int, index: int) -> str:
    return f"{executors(view, revision)}-{index}"


def revision_of_executors(view: str, name: str) -> int | None:
    """Return the revision whose executors have a StatefulSet with this name, or None."""
    return _revision_before(_EXECUTORS, view, name)


def _revision_before(suffix: str, view: str, name: str) -> int | None:
    revision = revision_number(name.removeprefix(f"{view}-").removesuffix(suffix))
    return revision if revision is not None and name == f"{child(view, revision)}{suffix}" else None


def internal_topic(application_id: str) -> str:
    """Return the name of the topic that a revision's rekey job writes."""
    return application_id + REKEY_SUFFIX


def pod(view: str, revision: int, index: int) -> str:
    return f"{child(view, revision)}-{index}"


def node_certificate(view: str) -> str:
    """Return the name of the Secret with the certificate that the nodes of a view show each other."""
    return f"{view}-nodes"


def node_tls_name(namespace: str, view: str) -> str:
    """Return the name in that certificate. It is no address, so a client never asks for it."""
    return f"nodes.{view}.{namespace}.{GROUP}"


def service_names(namespace: str, view: str) -> tuple[str, str, str]:
    """Return the names of the view's Service within the cluster, without the cluster's domain, the longest first."""
    within = f"{view}.{namespace}"
    return f"{within}.svc", within, view


def service_hosts(namespace: str, view: str, cluster_domain: str) -> tuple[str, ...]:
    """Return all names by which clients in the cluster call the view's Service, the whole one first."""
    longest, *others = service_names(namespace, view)
    return f"{longest}.{cluster_domain}", longest, *others


def volume_claim(view: str, revision: int, index: int) -> str:
    return f"data-{pod(view, revision, index)}"


def application_id(namespace: str, view: str, revision: int, uid: str) -> str:
    """Return a revision's identity in Kafka and on disks.

    It ends in a part of the resource's uid. Views with one name in several clusters that share a Kafka therefore have groups
    and topics of their own, and a name proves its owner.
    """
    return f"{shared_application_id(namespace, view, revision)}-{_uid_prefix(uid)}"


def shared_application_id(namespace: str, view: str, revision: int) -> str:
    """Return the identity that earlier releases gave. Views with this name in other clusters share it."""
    return f"{namespace}.{view}.{revision_text(revision)}"


def is_application_of(text: str, namespace: str, view: str, uid: str) -> bool:
    """Return whether the text is an application id of one of this resource's revisions, and of no other resource's."""
    shared, _, mark = text.rpartition("-")
    return mark == _uid_prefix(uid) and is_shared_application_of(shared, namespace, view)


def is_shared_application_of(text: str, namespace: str, view: str) -> bool:
    """Return whether an earlier release would have given this id to a view with this name, in any cluster."""
    prefix, _, revision = text.rpartition(".")
    return prefix == f"{namespace}.{view}" and revision_number(revision) is not None


def _uid_prefix(uid: str) -> str:
    """Return the first 48 bits of a uid: enough to tell resources apart, and short enough to read."""
    return uid.replace("-", "")[:12]


def advertised_url(
    namespace: str,
    view: str,
    revision: int,
    index: int,
    cluster_domain: str,
    port: int = DEFAULT_PORT,
    scheme: str = "http",
) -> str:
    host = f"{pod(view, revision, index)}.{child(view, revision)}.{namespace}.svc.{cluster_domain}"
    return f"{scheme}://{host}:{port}"


def labels(view: str) -> Mapping[str, str]:
    return {
        "app.kubernetes.io/name": "queryable-topic",
        "app.kubernetes.io/instance": view,
        "app.kubernetes.io/managed-by": FIELD_MANAGER,
        VIEW_LABEL: view,
    }


def revision_labels(view: str, revision: int) -> Mapping[str, str]:
    return {**labels(view), REVISION_LABEL: revision_text(revision)}


def rekey_selector(view: str, revision: int) -> Mapping[str, str]:
    """Return the selector of the pod of a revision's rekey job."""
    return {VIEW_LABEL: view, REKEY_LABEL: revision_text(revision)}


def executor_selector(view: str, revision: int) -> Mapping[str, str]:
    """Return the selector of the pods of a revision's executors."""
    return {VIEW_LABEL: view, EXECUTOR_LABEL: revision_text(revision)}


def selector(view: str, revision: int) -> Mapping[str, str]:
    """Return the selector of a revision's pods. It never grows, since a StatefulSet's selector is immutable."""
    return {VIEW_LABEL: view, REVISION_LABEL: revision_text(revision)}
