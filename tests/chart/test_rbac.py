"""What the operator may do in the cluster: what its code does, and nothing else."""

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
def test_what_is_granted_is_what_is_used(values: dict[str, Any]) -> None:
    """The operator's own list of what it does, which it checks at its start, is what the roles say."""
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
def test_nothing_is_granted_by_a_star(values: dict[str, Any]) -> None:
    """Every group, resource and verb is named."""
    for name, rules in roles(render(values)):
        assert not [g for g in granted(rules) if "*" in g], name


@pytest.mark.parametrize("values", [WIDE, NARROW], ids=["cluster", "namespaces"])
def test_secrets_are_not_listed(values: dict[str, Any]) -> None:
    """A Secret is read by its name, which stands in a resource."""
    for _, rules in roles(render(values)):
        assert not granted(rules) & {"list secrets", "watch secrets", "deletecollection secrets"}


def test_a_role_in_a_namespace_is_the_one_of_the_cluster() -> None:
    """But for Kubernetes nodes, which are in no namespace."""
    wide = granted(render(WIDE).one("ClusterRole", "topics")["rules"])
    for role in render(NARROW).all("Role"):
        if role["metadata"]["namespace"] in ("a", "b"):
            assert wide - granted(role["rules"]) == {"list nodes", "watch nodes"}


def test_for_some_namespaces_nothing_is_granted_elsewhere() -> None:
    """No ClusterRoleBinding, and in its own namespace nothing but the Lease."""
    rendered = render(NARROW)
    assert rendered.all("ClusterRoleBinding") == []
    leader = rendered.one("Role", "-leader")
    assert {g.partition(" ")[2] for g in granted(leader["rules"])} == {"leases.coordination.k8s.io"}


def test_every_role_is_bound_to_the_operator() -> None:
    """Each binding names a role that is there, and the account that the operator runs as."""
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


def test_people_get_what_their_role_says() -> None:
    """Those who view read; those who edit also write and scale; nobody writes the status."""
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


def test_helm_test_asks_for_what_is_granted() -> None:
    """Its list of what the operator needs is the operator's role."""
    rendered = render(NARROW)
    (container,) = rendered.one("Pod", "-operator")["spec"]["containers"]
    checks = yaml.safe_load(container["env"][0]["value"])
    role = next(o for o in rendered.all("Role") if o["metadata"]["namespace"] == "a")
    assert checks["namespaces"] == ["a", "b"]
    assert checks["rules"] == role["rules"]
