"""What surrounds the pods: how many may be away, who reaches them, whom they are, and the token that they share."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

from queryable_app.contract import DEFAULT_PORT
from queryable_operator.build.children import child
from queryable_operator.spec import names
from queryable_operator.spec.observed import Manifest
from queryable_operator.spec.resource import Identity, View
from queryable_operator.spec.settings import OperatorSettings

TOKEN_KEY = "token"  # noqa: S105  (the name of a key, not its value)


def disruption_budget(view: View, revision: int) -> Manifest:
    """One pod at a time. One that is not ready anyway holds no drain up."""
    spec = {
        "maxUnavailable": 1,
        "selector": {"matchLabels": dict(names.selector(view.name, revision))},
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    }
    return child(view, revision, "PodDisruptionBudget", {"spec": spec})


def network_policy(view: View, settings: OperatorSettings) -> Manifest:
    """Pods are reached at the one port that they serve. Where they go is not restricted: Kafka may be anywhere."""
    nodes = {"matchLabels": {names.VIEW_LABEL: view.name}}
    ingress: dict[str, Any] = {"ports": [{"protocol": "TCP", "port": DEFAULT_PORT}]}
    if peers := view.raw.get("networkPolicy", {}).get("from"):
        ingress["from"] = [*peers, {"podSelector": nodes}, *_operator(settings)]
    spec = {"podSelector": nodes, "policyTypes": ["Ingress"], "ingress": [ingress]}
    return child(view, None, "NetworkPolicy", {"spec": spec})


def _operator(settings: OperatorSettings) -> Iterator[Manifest]:
    """The operator's own pods, which ask nodes how they are."""
    if settings.namespace:
        yield {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": settings.namespace}},
            "podSelector": {"matchLabels": dict(names.OPERATOR_LABELS)},
        }


def service_account(view: View) -> Manifest:
    """Nodes never ask the API server."""
    return child(view, None, "ServiceAccount", {"automountServiceAccountToken": False})


def token_secret(identity: Identity, revision: int, token: str) -> Manifest:
    """The token that the nodes of a revision know one another by. Made once, never written again."""
    data = {TOKEN_KEY: base64.b64encode(token.encode()).decode()}
    body = {"type": "Opaque", "immutable": True, "data": data}
    return child(identity, revision, "Secret", body)
