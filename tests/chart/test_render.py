"""Test what the chart renders with a few sets of values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest
import yaml

from tests.support.helm import CHART, Refused, helm, render

ALWAYS = [
    "Deployment demo-queryable-topics",
    "Pod demo-queryable-topics-test-operator",
    "Pod demo-queryable-topics-test-resource",
    "Role demo-queryable-topics-leader",
    "Role demo-queryable-topics-test-resource",
    "RoleBinding demo-queryable-topics-leader",
    "RoleBinding demo-queryable-topics-test-resource",
    "Service demo-queryable-topics",
    "ServiceAccount demo-queryable-topics",
    "ServiceAccount demo-queryable-topics-test-resource",
]
FOR_PEOPLE = [
    "ClusterRole operators-demo-queryable-topics-edit",
    "ClusterRole operators-demo-queryable-topics-view",
]
CRD = ["CustomResourceDefinition queryabletopics.queryabletopics.io"]
EVERYTHING: dict[str, Any] = {
    "replicas": 2,
    "networkPolicy": {"enabled": True, "from": [{"namespaceSelector": {"matchLabels": {"a": "b"}}}]},
    "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "prometheusRule": {"enabled": True},
    "grafanaDashboard": {"enabled": True, "annotations": {"folder": "Kafka"}},
    "imagePullSecrets": [{"name": "registry"}],
    "env": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
    "podLabels": {"team": "data"},
    "podAnnotations": {"note": "x"},
    "nodeSelector": {"disk": "ssd"},
    "affinity": {"podAntiAffinity": {}},
    "tolerations": [{"operator": "Exists"}],
    "priorityClassName": "system-cluster-critical",
    "serviceAccount": {"annotations": {"a": "b"}},
}


def test_chart_passes_helm_lint() -> None:
    """`helm lint` reports nothing."""
    assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART))


def test_defaults_render_a_cluster_wide_operator() -> None:
    """One operator for all namespaces, the CRD, and roles for users are rendered."""
    cluster_wide = [
        f"{kind} operators-demo-queryable-topics" for kind in ("ClusterRole", "ClusterRoleBinding")
    ]
    assert render().names == sorted([*ALWAYS, *FOR_PEOPLE, *CRD, *cluster_wide])


def test_namespaces_render_a_namespaced_operator() -> None:
    """Each namespace has a role, the cluster has none, and the operator watches those namespaces only."""
    rendered = render({"watchNamespaces": ["a", "b"], "crds": {"install": False}})
    roles = [
        f"{kind} operators-demo-queryable-topics in {n}" for n in "ab" for kind in ("Role", "RoleBinding")
    ]
    assert rendered.names == sorted([*ALWAYS, *FOR_PEOPLE, *roles])
    (container,) = rendered.one("Deployment")["spec"]["template"]["spec"]["containers"]
    assert [a for a in container["args"] if "namespace" in a] == ["--namespaces=a,b"]


def test_all_values_render_every_object() -> None:
    """Two operators and all monitoring objects are rendered."""
    names = set(render(EVERYTHING).names) - set(render().names)
    assert sorted(names) == [
        "ConfigMap demo-queryable-topics-dashboard",
        "NetworkPolicy demo-queryable-topics",
        "PodDisruptionBudget demo-queryable-topics",
        "PodMonitor demo-queryable-topics",
        "PodMonitor demo-queryable-topics-nodes",
        "PrometheusRule demo-queryable-topics",
    ]


def test_operator_deployment_is_golden() -> None:
    """The default Deployment changes only on purpose."""
    deployment = render().one("Deployment")["spec"]
    (container,) = deployment["template"]["spec"]["containers"]
    assert deployment["strategy"] == {"type": "Recreate"}
    assert container["image"] == "queryable-topics:0.1.0"
    assert container["command"] == ["python", "-m", "queryable_operator"]
    assert container["args"] == [
        "--node-image=queryable-topics:0.1.0",
        "--cluster-domain=cluster.local",
        "--leader-election",
        "--lease-name=demo-queryable-topics",
        "--reconcile-seconds=10",
        "--metrics-port=8081",
        "--log-format=json",
    ]


def leaves(node: Mapping[str, Any], path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    return [
        leaf
        for name, value in node.items()
        for leaf in (leaves(value, (*path, name)) if isinstance(value, dict) and value else [(*path, name)])
    ]


VALUES = yaml.safe_load((CHART / "values.yaml").read_text())

# Other values, where the opposite alone does not do; and the values that give them an effect.
OTHERS: dict[str, Any] = {
    "nameOverride": "other",
    "fullnameOverride": "other",
    "image.repository": "elsewhere/queryable-topics",
    "image.tag": "other",
    "image.digest": "sha256:" + "0" * 64,
    "image.pullPolicy": "Never",
    "nodeImage": "nodes:1",
    "imagePullSecrets": [{"name": "other"}],
    "watchNamespaces": ["other"],
    "clusterDomain": "other.local",
    "logging.format": "text",
    "env": [{"name": "OTHER", "value": "x"}],
    "serviceAccount.name": "other",
    "resources.requests.cpu": "1",
    "resources.requests.memory": "1Gi",
    "resources.limits.memory": "1Gi",
    "podSecurityContext.seccompProfile.type": "Unconfined",
    "securityContext.capabilities.drop": [],
    "affinity": {"nodeAffinity": {}},
    "tolerations": [{"operator": "Exists"}],
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    ],
    "priorityClassName": "other",
    "networkPolicy.from": [{"podSelector": {}}],
    "podMonitor.interval": "1m",
    "serviceMonitor.interval": "1m",
    "podMonitor.authorization": {"credentials": {"name": "view-metrics", "key": "token"}},
    "serviceMonitor.authorization": {"credentials": {"name": "view-metrics", "key": "token"}},
    "prometheusRule.runbooks": "https://example.test/runbooks",
}
NEEDED: dict[str, dict[str, Any]] = {
    "podDisruptionBudget.enabled": {"replicas": 2},
    **{
        f"{group}.{name}": {group: {"enabled": True}}
        for group in (
            "networkPolicy",
            "podMonitor",
            "serviceMonitor",
            "prometheusRule",
            "grafanaDashboard",
        )
        for name in VALUES[group]
        if name != "enabled"
    },
    "grafanaDashboard.labels.grafana_dashboard": {"grafanaDashboard": {"enabled": True}},
}


@pytest.mark.parametrize("path", leaves(VALUES), ids=".".join)
def test_every_value_changes_something(path: tuple[str, ...]) -> None:
    """Another value renders another release."""
    name = ".".join(path)
    now: Any = VALUES
    for part in path:
        now = now[part]
    needed = NEEDED.get(name, {})
    other = OTHERS[name] if name in OTHERS else another(now)
    assert text_of(json.dumps(needed)) != text_of(json.dumps(merged(needed, nested(path, other))))


@cache
def text_of(values: str) -> str:
    return helm("template", "demo", str(CHART), "--values", "-", stdin=values)


def another(value: Any) -> Any:
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case dict():
            return {"other": "x"}
        case str():
            return "2"
    raise AssertionError(f"say in OTHERS what else it may be: {value!r}")


def nested(path: tuple[str, ...], value: Any) -> Any:
    return {path[0]: nested(path[1:], value)} if path else value


def merged(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    both = {k: merged(a[k], b[k]) for k in a.keys() & b.keys() if isinstance(a[k], dict)}
    return {**a, **b, **both}


def test_test_pods_are_not_selected_as_the_operator() -> None:
    """The operator's Service and PodDisruptionBudget do not select the pods of `helm test`."""
    rendered = render({"replicas": 2})
    selector = rendered.one("Service")["spec"]["selector"]
    budget = rendered.one("PodDisruptionBudget")["spec"]["selector"]["matchLabels"]
    deployment = rendered.one("Deployment")["spec"]
    for pod in rendered.all("Pod"):
        assert not selector.items() <= pod["metadata"]["labels"].items()
    assert selector == budget == deployment["selector"]["matchLabels"]
    assert selector.items() <= deployment["template"]["metadata"]["labels"].items()


def test_pod_labels_keep_the_selector_labels() -> None:
    """podLabels cannot replace a label that the Deployment selects by."""
    rendered = render({"podLabels": {"app.kubernetes.io/name": "mine"}})
    deployment = rendered.one("Deployment")["spec"]
    assert (
        deployment["selector"]["matchLabels"].items() <= deployment["template"]["metadata"]["labels"].items()
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"replicaCount": 2}, "'replicaCount' not allowed"),
        ({"image": {"tga": "1"}}, "'tga' not allowed"),
        ({"podMonitor": {"enable": True}}, "'enable' not allowed"),
        ({"securityContext": {"privileged": True}}, "'privileged' not allowed"),
        ({"replicas": "two"}, "want integer"),
        ({"watchNamespaces": "team-a"}, "want array"),
        ({"watchNamespaces": ["Team_A"]}, "does not match pattern"),
        ({"resources": {"limits": {"memory": "256 MB"}}}, "does not match pattern"),
        ({"logging": {"format": "xml"}}, "value must be one of 'json', 'text'"),
        ({"replicas": 2, "leaderElection": {"enabled": False}}, "needs leaderElection.enabled: true"),
        ({"podMonitor": {"enabled": True}, "serviceMonitor": {"enabled": True}}, "choose one"),
    ],
)
def test_invalid_value_is_named(values: dict[str, Any], message: str) -> None:
    """A misspelt or impossible value is refused by name."""
    with pytest.raises(Refused, match=message):
        render(values)


def test_old_cluster_is_refused() -> None:
    """The CRD needs a newer Kubernetes."""
    with pytest.raises(Refused, match=r"requires kubeVersion: >=1\.29"):
        render({}, "--kube-version", "1.28.0")


def test_long_release_name_is_valid() -> None:
    """A release name may be as long as Helm allows."""
    text = helm("template", "r" * 53, str(CHART), "--namespace", "n" * 63, "--set", "replicas=2")
    for line in text.splitlines():
        if line.startswith("  name: "):
            name = line.removeprefix("  name: ")
            assert len(name) <= (63 if "n" * 20 not in name else 253), name
