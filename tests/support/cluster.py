"""Access the real Kubernetes cluster that KUBECONFIG names: kubectl, and the API server's own responses."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from queryable_operator.spec import names

CRD_FILE = Path(__file__).parents[2] / "crds" / "queryabletopic.yaml"
_TOPICS = "/apis/queryabletopics.io/v1alpha1/namespaces/{}/queryabletopics"
_PATHS = {
    "configmap": "api/v1/configmaps",
    "event": "api/v1/events",
    "networkpolicy": "apis/networking.k8s.io/v1/networkpolicies",
    "pdb": "apis/policy/v1/poddisruptionbudgets",
    "pod": "api/v1/pods",
    "poddisruptionbudget": "apis/policy/v1/poddisruptionbudgets",
    "pvc": "api/v1/persistentvolumeclaims",
    "qt": f"apis/{names.API_VERSION}/{names.PLURAL}",
    "secret": "api/v1/secrets",
    "service": "api/v1/services",
    "serviceaccount": "api/v1/serviceaccounts",
    "statefulset": "apis/apps/v1/statefulsets",
}


class Refused(Exception):
    """Carry kubectl's own error message."""


@dataclass(frozen=True)
class Answer:
    """Contain the result of a write: the object, or the errors by field path."""

    status: int
    body: Mapping[str, Any]

    @property
    def mistakes(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for cause in self.body.get("details", {}).get("causes", []):
            found.setdefault(cause.get("field", ""), []).append(cause["message"])
        return found

    @property
    def sentences(self) -> str:
        return str(self.body.get("message", ""))


@dataclass(frozen=True)
class Namespace:
    """Represent one namespace of the cluster, and a user's actions in it."""

    name: str
    api: httpx.Client

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout: float = 60) -> str:
        """Return the output of kubectl; raise `Refused` with its error message."""
        return kubectl("--namespace", self.name, *arguments, stdin=stdin, timeout=timeout)

    def path(self, kind: str) -> str:
        """Return the path of the objects of a kind."""
        group, _, plural = _PATHS[kind].rpartition("/")
        return f"/{group}/namespaces/{self.name}/{plural}"

    def listed(self, kind: str, name: str = "", **parameters: str) -> Any:
        """List directly from the API server, since one kubectl per look would cost more than the objects."""
        return self.api.get(f"{self.path(kind)}{name}", params=parameters).raise_for_status().json()

    def get(self, kind: str, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.kubectl("get", kind, name, "--output", "json"))
        return found

    def try_topic(self, resource: Mapping[str, Any]) -> Answer:
        """Return whether the API server would accept the resource, without creating it."""
        answer = self.api.post(_TOPICS.format(self.name), params={"dryRun": "All"}, json=resource)
        return Answer(answer.status_code, answer.json())

    def try_change(self, name: str, spec: Mapping[str, Any]) -> Answer:
        """Return whether the API server would accept another spec, without changing it."""
        path = f"{_TOPICS.format(self.name)}/{name}"
        live = self.api.get(path).raise_for_status().json()
        answer = self.api.put(path, params={"dryRun": "All"}, json={**live, "spec": spec})
        return Answer(answer.status_code, answer.json())

    def release_resources(self) -> None:
        """Remove the finalizers that no operator removes, so that the namespace can be deleted."""
        for live in self.listed("qt")["items"]:
            answer = self.api.patch(
                f"{self.path('qt')}/{live['metadata']['name']}",
                json={"metadata": {"finalizers": None}},
                headers={"content-type": "application/merge-patch+json"},
            )
            assert answer.is_success or answer.status_code == 404, (
                answer.text
            )  # 404: it was deleted meanwhile


def kubectl(*arguments: str, stdin: str | None = None, timeout: float = 60) -> str:
    done = subprocess.run(
        ["kubectl", *arguments], input=stdin, capture_output=True, text=True, timeout=timeout, check=False
    )
    if done.returncode:
        raise Refused(done.stderr + done.stdout)
    return done.stdout + done.stderr


def has_kubectl() -> bool:
    return shutil.which("kubectl") is not None


@contextmanager
def api_server() -> Iterator[httpx.Client]:
    """Call the API server through `kubectl proxy`, so that every way to log in works."""
    command = ["kubectl", "proxy", "--port=0", "--reject-paths=^$"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as proxy:
        try:
            assert proxy.stdout is not None
            address = proxy.stdout.readline().rsplit(" ", 1)[-1].strip()
            with httpx.Client(base_url=f"http://{address}", timeout=60, trust_env=False) as client:
                yield client
        finally:
            proxy.terminate()
