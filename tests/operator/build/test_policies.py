"""What surrounds the pods."""

from __future__ import annotations

import base64
from typing import Any

from queryable_operator.build.policies import disruption_budget, network_policy, service_account, token_secret
from queryable_operator.spec import names
from queryable_operator.spec.settings import OperatorSettings
from tests.support.view import SETTINGS, view


def test_one_pod_of_a_revision_may_be_away() -> None:
    """A drain takes one pod at a time, and is not held up by one that is not ready anyway."""
    assert disruption_budget(view(), 2)["spec"] == {
        "maxUnavailable": 1,
        "selector": {"matchLabels": names.selector("users", 2)},
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    }


def test_pods_are_reached_at_one_port() -> None:
    """All pods of the view, whatever their revision; where they go is not restricted."""
    spec = network_policy(view(), SETTINGS)["spec"]

    assert spec["podSelector"] == {"matchLabels": {"queryabletopics.io/view": "users"}}
    assert spec["policyTypes"] == ["Ingress"]
    assert spec["ingress"] == [{"ports": [{"protocol": "TCP", "port": 8080}]}]


def test_port_is_closed_to_all_but_named_peers() -> None:
    """Beside those that the resource names only its own nodes and the operator's pods connect."""
    peers = [{"podSelector": {"matchLabels": {"app": "shop"}}}, {"ipBlock": {"cidr": "10.1.0.0/16"}}]
    spec = network_policy(view(networkPolicy={"from": peers}), SETTINGS)["spec"]

    (ingress,) = spec["ingress"]
    assert ingress["ports"] == [{"protocol": "TCP", "port": 8080}]
    assert ingress["from"] == [
        *peers,
        {"podSelector": {"matchLabels": {"queryabletopics.io/view": "users"}}},
        {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "queryable-topics"}},
            "podSelector": {
                "matchLabels": {
                    "app.kubernetes.io/part-of": "queryable-topics",
                    "app.kubernetes.io/component": "operator",
                }
            },
        },
    ]


def test_operator_outside_of_the_cluster_is_no_peer() -> None:
    """It has no pod, and reaches no node anyway."""
    peers: list[dict[str, Any]] = [{"podSelector": {}}]
    spec = network_policy(view(networkPolicy={"from": peers}), OperatorSettings("image"))["spec"]

    assert spec["ingress"][0]["from"] == [*peers, {"podSelector": spec["podSelector"]}]


def test_the_account_has_no_token() -> None:
    """Nobody can act as a node at the API server."""
    assert service_account(view())["automountServiceAccountToken"] is False


def test_the_token_cannot_be_changed() -> None:
    """Nodes of a revision share the token that it was made with."""
    secret = token_secret(view(), 1, "abc")

    assert secret["immutable"] is True
    assert base64.b64decode(secret["data"]["token"]) == b"abc"
    assert secret["metadata"]["name"] == "users-r1"
