"""Build what surrounds the pods: disruption budget, network policy, service account and token."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from queryable_app.contract import DEFAULT_PORT, REKEY_BLOCKS_PORT, REKEY_PORT
from queryable_operator.build.children import child
from queryable_operator.spec import names
from queryable_operator.spec.observed import Manifest
from queryable_operator.spec.pods import PodLayout
from queryable_operator.spec.rekeying import executor_count
from queryable_operator.spec.resource import Identity, View
from queryable_operator.spec.settings import OperatorSettings

TOKEN_KEY = "token"  # noqa: S105  (the name of a key, not its value)


def disruption_budget(view: View, revision: int) -> Manifest:
    """Allow one voluntary disruption at a time. A pod that is not ready does not block a drain."""
    spec = {
        "maxUnavailable": 1,
        "selector": {"matchLabels": dict(names.selector(view.name, revision))},
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    }
    return child(view, revision, "PodDisruptionBudget", {"spec": spec})


def network_policy(view: View, settings: OperatorSettings, layouts: Iterable[PodLayout] = ()) -> Manifest:
    """Restrict ingress to the ports that pods of these layouts serve. Egress stays open, since Kafka may be anywhere."""
    nodes = {"matchLabels": {names.VIEW_LABEL: view.name}}
    ports: list[Manifest] = [{"protocol": "TCP", "port": DEFAULT_PORT}]
    if own := sorted({port for layout in layouts for port in layout.worker_ports.values()}):
        ports.append({"protocol": "TCP", "port": own[0], "endPort": own[-1]})
    ingress: dict[str, Any] = {"ports": ports}
    if peers := view.raw.get("networkPolicy", {}).get("from"):
        ingress["from"] = [*peers, {"podSelector": nodes}, *_operator(settings)]
    rules = [ingress]
    if executor_count(view.raw):
        spark = [{"protocol": "TCP", "port": port} for port in (REKEY_PORT, REKEY_BLOCKS_PORT)]
        rules.append({"ports": spark, "from": [{"podSelector": nodes}]})
    spec = {"podSelector": nodes, "policyTypes": ["Ingress"], "ingress": rules}
    return child(view, None, "NetworkPolicy", {"spec": spec})


def _operator(settings: OperatorSettings) -> Iterator[Manifest]:
    """Select the operator's own pods, which request the nodes' status."""
    if settings.namespace:
        yield {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": settings.namespace}},
            "podSelector": {"matchLabels": dict(names.OPERATOR_LABELS)},
        }


def service_account(view: View) -> Manifest:
    """Build the pods' service account. Nodes never call the API server."""
    return child(view, None, "ServiceAccount", {"automountServiceAccountToken": False})


def certificate_secret(identity: Identity, data: Mapping[str, str]) -> Manifest:
    """Build the Secret with the certificate that the nodes of a view show each other."""
    name = names.node_certificate(identity.name)
    return child(identity, None, "Secret", {"type": "kubernetes.io/tls", "data": dict(data)}, name=name)


def token_secret(identity: Identity, revision: int, token: str) -> Manifest:
    """Build the Secret with the token shared by a revision's nodes and the operator. It is written once."""
    data = {TOKEN_KEY: base64.b64encode(token.encode()).decode()}
    body = {"type": "Opaque", "immutable": True, "data": data}
    return child(identity, revision, "Secret", body)
