"""Access the real Kubernetes cluster that KUBECONFIG names: kubectl, and the API server's own responses."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

CRD_FILE = Path(__file__).parents[2] / "crds" / "queryabletopic.yaml"
_TOPICS = "/apis/queryabletopics.io/v1alpha1/namespaces/{}/queryabletopics"


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
        listed = self.kubectl("get", "qt", "--output=name", "--ignore-not-found")
        for name in (word for word in listed.split() if "/" in word):
            with suppress(Refused):  # the resource was deleted meanwhile
                self.kubectl("patch", name, "--type=merge", "--patch", '{"metadata":{"finalizers":null}}')


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
