"""Test that the chart's pods meet the restricted Pod Security level."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.support.helm import Rendered, render


def pods(rendered: Rendered) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for o in rendered.all("Deployment"):
        yield o["metadata"]["name"], o["spec"]["template"]["spec"]
    for o in rendered.all("Pod"):
        yield o["metadata"]["name"], o["spec"]


def violations(pod: Mapping[str, Any]) -> Iterator[str]:
    """Return the violations of https://kubernetes.io/docs/concepts/security/pod-security-standards/, "Restricted"."""
    context = pod.get("securityContext", {})
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.get(field):
            yield field
    for volume in pod.get("volumes", ()):
        kinds = set(volume) - {"name"}
        if not kinds <= {
            "configMap",
            "secret",
            "emptyDir",
            "projected",
            "downwardAPI",
            "persistentVolumeClaim",
        }:
            yield f"volume {kinds}"
    for container in (*pod["containers"], *pod.get("initContainers", ())):
        own = container.get("securityContext", {})
        profile = own.get("seccompProfile", context.get("seccompProfile", {})).get("type")
        if own.get("runAsNonRoot", context.get("runAsNonRoot")) is not True:
            yield "runAsNonRoot"
        if own.get("runAsUser", context.get("runAsUser")) == 0:
            yield "runAsUser"
        if own.get("allowPrivilegeEscalation") is not False:
            yield "allowPrivilegeEscalation"
        if own.get("privileged"):
            yield "privileged"
        if own.get("capabilities", {}).get("drop") != ["ALL"] or own["capabilities"].get("add"):
            yield "capabilities"
        if profile not in ("RuntimeDefault", "Localhost"):
            yield "seccompProfile"
        if any("hostPort" in port for port in container.get("ports", ())):
            yield "hostPort"


@pytest.mark.parametrize("values", [{}, {"replicas": 2, "watchNamespaces": ["a"]}], ids=["one", "two"])
def test_every_pod_is_restricted(values: dict[str, Any]) -> None:
    """Every pod of the chart, those of `helm test` included, meets the restricted level."""
    found = dict(pods(render(values)))
    assert len(found) == 3
    assert {name: list(violations(pod)) for name, pod in found.items()} == {name: [] for name in found}


@pytest.mark.parametrize(
    ("values", "violation"),
    [
        ({"podSecurityContext": {"runAsNonRoot": False}}, "runAsNonRoot"),
        ({"podSecurityContext": {"runAsUser": 0}}, "runAsUser"),
        ({"podSecurityContext": {"seccompProfile": {"type": "Unconfined"}}}, "seccompProfile"),
        ({"securityContext": {"allowPrivilegeEscalation": True}}, "allowPrivilegeEscalation"),
        ({"securityContext": {"capabilities": {"add": ["NET_ADMIN"]}}}, "capabilities"),
    ],
)
def test_check_detects_each_violation(values: dict[str, Any], violation: str) -> None:
    """Each part of the security context counts, for every pod."""
    assert all(violation in set(violations(pod)) for _, pod in pods(render(values)))


def test_root_file_systems_are_read_only() -> None:
    """Pods write to volumes that end with them."""
    for _, pod in pods(render()):
        for container in pod["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert container["resources"]["limits"]["memory"]


def test_only_the_operators_pods_have_its_token() -> None:
    """A pod that names the operator's ServiceAccount gets no token."""
    rendered = render()
    assert all(o["automountServiceAccountToken"] is False for o in rendered.all("ServiceAccount"))
    assert all(pod["automountServiceAccountToken"] is True for _, pod in pods(rendered))
