"""Test the objects around the pods."""

from __future__ import annotations

import base64
from typing import Any

from queryable_operator.build.policies import disruption_budget, network_policy, service_account, token_secret
from queryable_operator.spec import names
from queryable_operator.spec.settings import OperatorSettings
from tests.support.view import SETTINGS, view


def test_one_pod_may_be_disrupted() -> None:
    """A drain evicts one pod at a time, and unready pods do not block it."""
    assert disruption_budget(view(), 2)["spec"] == {
        "maxUnavailable": 1,
        "selector": {"matchLabels": names.selector("users", 2)},
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    }


def test_pods_accept_one_port() -> None:
    """All pods of the view accept it, in every revision; egress is open."""
    spec = network_policy(view(), SETTINGS)["spec"]

    assert spec["podSelector"] == {"matchLabels": {"queryabletopics.io/view": "users"}}
    assert spec["policyTypes"] == ["Ingress"]
    assert spec["ingress"] == [{"ports": [{"protocol": "TCP", "port": 8080}]}]


def test_port_accepts_named_peers_only() -> None:
    """Beside named peers, the view's own nodes and the operator connect."""
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
    """The NetworkPolicy has no peer for an operator outside of the cluster."""
    peers: list[dict[str, Any]] = [{"podSelector": {}}]
    spec = network_policy(view(networkPolicy={"from": peers}), OperatorSettings("image"))["spec"]

    assert spec["ingress"][0]["from"] == [*peers, {"podSelector": spec["podSelector"]}]


def test_service_account_has_no_token() -> None:
    """No pod can call the API server."""
    assert service_account(view())["automountServiceAccountToken"] is False


def test_token_secret_is_immutable() -> None:
    """Nodes of a revision share the token that it was created with."""
    secret = token_secret(view(), 1, "abc")

    assert secret["immutable"] is True
    assert base64.b64decode(secret["data"]["token"]) == b"abc"
    assert secret["metadata"]["name"] == "users-r1"
