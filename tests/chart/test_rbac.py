"""Test that the operator's permissions are those that its code uses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import yaml

from queryable_operator.act.preflight import permissions
from tests.support.helm import Rendered, render
from tests.support.rights import words

Rule = Mapping[str, Sequence[str]]
WIDE: dict[str, Any] = {}
NARROW: dict[str, Any] = {"watchNamespaces": ["a", "b"]}


def granted(rules: Sequence[Rule]) -> set[str]:
    return {
        f"{verb} {resource}.{group}".rstrip(".")
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def roles(rendered: Rendered) -> Iterator[tuple[str, Any]]:
    for role in rendered.all("Role", "ClusterRole"):
        yield role["metadata"]["name"], role["rules"]


@pytest.mark.parametrize("values", [WIDE, NARROW], ids=["cluster", "namespaces"])
def test_roles_equal_the_preflight_list(values: dict[str, Any]) -> None:
    """The roles grant what the operator checks at its start, and no more."""
    rendered = render(values)
    given = {
        (permission, name, role["metadata"].get("namespace"))
        for role in rendered.all("Role", "ClusterRole")
        if role["metadata"]["name"].endswith(("-leader", "topics"))
        for rule in role["rules"]
        for permission in granted([rule])
        for name in rule.get("resourceNames", [""])
    }
    lease = ("operators", "demo-queryable-topics")
    used = {(words(p), p.name, p.namespace) for p in permissions(values.get("watchNamespaces", ()), lease)}
    assert given == used
    (container,) = rendered.one("Deployment")["spec"]["template"]["spec"]["containers"]
    assert f"--lease-name={lease[1]}" in container["args"]


@pytest.mark.parametrize("values", [WIDE, NARROW], ids=["cluster", "namespaces"])
def test_roles_have_no_wildcard(values: dict[str, Any]) -> None:
    """Every group, resource and verb is named."""
    for name, rules in roles(render(values)):
        assert not [g for g in granted(rules) if "*" in g], name


@pytest.mark.parametrize("values", [WIDE, NARROW], ids=["cluster", "namespaces"])
def test_secrets_are_not_listed(values: dict[str, Any]) -> None:
    """A Secret is read by the name in a resource."""
    for _, rules in roles(render(values)):
        assert not granted(rules) & {"list secrets", "watch secrets", "deletecollection secrets"}


def test_namespaced_role_equals_the_cluster_role() -> None:
    """Kubernetes nodes, which are cluster-scoped, are the only exception."""
    wide = granted(render(WIDE).one("ClusterRole", "topics")["rules"])
    for role in render(NARROW).all("Role"):
        if role["metadata"]["namespace"] in ("a", "b"):
            assert wide - granted(role["rules"]) == {"list nodes", "watch nodes"}


def test_namespaced_release_grants_nothing_elsewhere() -> None:
    """A namespaced release has no ClusterRoleBinding, and in its own namespace only the right to the Lease."""
    rendered = render(NARROW)
    assert rendered.all("ClusterRoleBinding") == []
    leader = rendered.one("Role", "-leader")
    assert {g.partition(" ")[2] for g in granted(leader["rules"])} == {"leases.coordination.k8s.io"}


def test_every_role_is_bound_to_the_operator() -> None:
    """Each binding names an existing role and the operator's account."""
    for values in (WIDE, NARROW, {"serviceAccount": {"create": False, "name": "mine"}}):
        rendered = render(values)
        there = {(o["kind"], o["metadata"]["name"]) for o in rendered.all("Role", "ClusterRole")}
        account = rendered.one("Deployment")["spec"]["template"]["spec"]["serviceAccountName"]
        for binding in rendered.all("RoleBinding", "ClusterRoleBinding"):
            if "helm.sh/hook" not in binding["metadata"].get("annotations", {}):
                assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) in there
                assert binding["subjects"] == [
                    {"kind": "ServiceAccount", "name": account, "namespace": "operators"}
                ]


def test_aggregated_roles_match_their_names() -> None:
    """Viewers read, editors also write and scale, and no role writes the status."""
    rendered = render()
    label = "rbac.authorization.k8s.io/aggregate-to-"
    of = {
        role: {
            g
            for o in rendered.all("ClusterRole")
            if o["metadata"]["labels"].get(f"{label}{role}") == "true"
            for g in granted(o["rules"])
        }
        for role in ("view", "edit", "admin")
    }
    assert {g.partition(" ")[0] for g in of["view"]} == {"get", "list", "watch"}
    assert of["view"] < of["edit"] == of["admin"]
    assert "patch queryabletopics/scale.queryabletopics.io" in of["edit"]
    assert not [g for g in of["admin"] if "/status" in g and not g.startswith("get ")]


def test_helm_test_checks_the_operators_role() -> None:
    """`helm test` checks exactly the permissions of the operator's role."""
    rendered = render(NARROW)
    (container,) = rendered.one("Pod", "-operator")["spec"]["containers"]
    checks = yaml.safe_load(container["env"][0]["value"])
    role = next(o for o in rendered.all("Role") if o["metadata"]["namespace"] == "a")
    assert checks["namespaces"] == ["a", "b"]
    assert checks["rules"] == role["rules"]
