"""Test the chart's metadata, values and copy of the CRD."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from queryable_app.local.resource_file import parse_resource
from tests.support.helm import CHART, render

ROOT = Path(__file__).parents[2]
CRD = ROOT / "crds" / "queryabletopic.yaml"
DESCRIBED: Mapping[str, Any] = yaml.safe_load((CHART / "Chart.yaml").read_text())
VALUES_TEXT = (CHART / "values.yaml").read_text()
SCHEMA: Mapping[str, Any] = json.loads((CHART / "values.schema.json").read_text())

# Objects whose fields are Kubernetes' own, or no business of ours.
FOREIGN = {"global", "valueFrom", "nodeAffinity", "podAffinity", "podAntiAffinity", "ipBlock"}
FOREIGN |= {"namespaceSelector", "podSelector", "tlsConfig", "topologySpreadConstraints[]"}


def test_crd_copy_equals_the_crd() -> None:
    """The chart's copy equals crds/, byte by byte."""
    assert (CHART / "files" / "crds" / "queryabletopic.yaml").read_bytes() == CRD.read_bytes()


def test_rendered_crd_is_retained() -> None:
    """What Helm applies differs from crds/ by the annotation that retains it on uninstall."""
    rendered = render().one("CustomResourceDefinition")
    assert rendered["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    assert rendered == yaml.safe_load(CRD.read_text())


def test_version_is_the_packages() -> None:
    """Chart, image and Python package have one version."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert (DESCRIBED["version"], DESCRIBED["appVersion"]) == (version, version)


def test_artifact_hub_annotations_are_valid() -> None:
    """The annotations for Artifact Hub name the CRD, and their example is valid."""
    annotations = DESCRIBED["annotations"]
    crd = yaml.safe_load(CRD.read_text())
    (named,) = yaml.safe_load(annotations["artifacthub.io/crds"])
    (example,) = yaml.safe_load(annotations["artifacthub.io/crdsExamples"])
    assert named["name"] == crd["metadata"]["name"]
    assert named["kind"] == crd["spec"]["names"]["kind"]
    assert named["version"] == crd["spec"]["versions"][0]["name"]
    assert parse_resource(yaml.safe_dump(example), "Chart.yaml").name == "users"


def test_every_value_is_explained() -> None:
    """Every value, or the group that contains it, has a comment."""
    explained: list[str] = []
    silent = []
    lines = VALUES_TEXT.splitlines()
    for number, line in enumerate(lines):
        match = re.match(r"( *)([A-Za-z]+):", line)
        if match is None:
            continue
        depth = len(match[1]) // 2
        explained = explained[:depth]
        above = lines[number - 1].strip()
        group = line.endswith(":") and depth == 0
        if above.startswith("#"):
            explained.append(match[2])
        elif not group and not explained:
            silent.append(f"{number + 1}: {line}")
    assert silent == []


def objects(node: Mapping[str, Any], path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if node.get("type") == "object":
        yield path, node
    for name, child in (*node.get("properties", {}).items(), *node.get("definitions", {}).items()):
        yield from objects(child, name)
    if isinstance(node.get("items"), dict):
        yield from objects(node["items"], f"{path}[]")


def test_schema_has_every_value() -> None:
    """Each group of values is closed and has the names in values.yaml."""
    loose = [path for path, node in objects(SCHEMA, "") if "additionalProperties" not in node]
    assert set(loose) <= FOREIGN
    for name, value in yaml.safe_load(VALUES_TEXT).items():
        node = resolved(SCHEMA["properties"][name])
        if isinstance(value, dict) and "properties" in node and value:
            assert set(value) <= set(node["properties"]), name
    assert set(SCHEMA["properties"]) - {"global"} == set(yaml.safe_load(VALUES_TEXT))


def resolved(node: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = node.get("$ref", "")
    found: Mapping[str, Any] = SCHEMA["definitions"][reference.rpartition("/")[2]] if reference else node
    return found


def test_chart_can_be_a_subchart() -> None:
    """Helm passes `global` to every subchart."""
    assert render({"global": {"imageRegistry": "elsewhere"}}) == render()
