"""Run the real Helm for tests: render a chart, or return why it is refused."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

CHART = Path(__file__).parents[2] / "charts" / "queryable-topics"
RELEASE = "demo"
NAMESPACE = "operators"

Manifest = Mapping[str, Any]


class Refused(Exception):
    """Carry Helm's own error message."""


@dataclass(frozen=True)
class Rendered:
    objects: tuple[Manifest, ...]

    @property
    def names(self) -> list[str]:
        """Return `Kind name` of each object, with the namespace if it is not the release's own."""
        return sorted(f"{o['kind']} {o['metadata']['name']}{_elsewhere(o)}" for o in self.objects)

    def one(self, kind: str, ending: str = "") -> Any:
        (found,) = (o for o in self.objects if o["kind"] == kind and o["metadata"]["name"].endswith(ending))
        return found

    def all(self, *kinds: str) -> list[Any]:
        return [o for o in self.objects if o["kind"] in kinds]


def helm(*arguments: str, stdin: str | None = None, timeout: float = 120) -> str:
    """Return the output of Helm, or raise `Refused` with its error message; skip the test if Helm is not installed."""
    program = shutil.which("helm")
    if program is None:
        pytest.skip("helm is not on the PATH")
    done = subprocess.run(
        [program, *arguments], input=stdin, capture_output=True, text=True, timeout=timeout, check=False
    )
    if done.returncode:
        raise Refused(done.stderr + done.stdout)
    return done.stdout


def render(values: Mapping[str, Any] | None = None, *options: str) -> Rendered:
    """Return every object of the release demo in the namespace operators, with those of `helm test`."""
    text = helm(
        "template", RELEASE, str(CHART), "--namespace", NAMESPACE, "--values", "-", *options,
        stdin=json.dumps(values or {}),
    )  # fmt: skip
    return Rendered(
        tuple(o for o in yaml.load_all(text, yaml.CSafeLoader) if o)
    )  # 10 times as fast as the other


def _elsewhere(o: Manifest) -> str:
    namespace = o["metadata"].get("namespace", NAMESPACE)
    return "" if namespace == NAMESPACE else f" in {namespace}"
