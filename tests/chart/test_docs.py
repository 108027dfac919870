"""Check that the pages on Kubernetes can be pasted: the files, values, fields and patches that they name exist and are valid."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from queryable_app.local.resource_file import crd, parse_resource
from queryable_operator.spec.changes import CHANGES
from tests.support.helm import CHART, render
from tests.support.pages import blocks, commands

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "kubernetes"
PAGES = [
    ROOT / "docs" / f"{name}.md"
    for name in ("install", "first_topic", "upgrade", "uninstall", "rbac", "runbooks")
]
VALUES: Mapping[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
SPEC = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]

KUBERNETES = {"QueryableTopic", "CrashLoopBackOff", "ImagePullBackOff"}


def by_name(path: Path) -> str:
    return path.stem


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_every_path_in_a_command_exists(page: Path) -> None:
    """A path in a command is a file of this checkout."""
    named = [
        word
        for words in commands(page)
        for word in words
        if word.startswith(("charts/", "examples/", "crds/", "docs/"))
    ]
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_every_value_is_valid(page: Path) -> None:
    """The chart accepts every --set and every block of values; the CRD accepts every resource."""
    for words in commands(page):
        options: list[str] = []
        for option, value in pairwise(words):
            if option in ("--set", "--values"):
                options += [option, value]
        if words[0] == "helm" and "--set" in options:
            render({}, *options)
    for block in blocks(page, "yaml"):
        document = yaml.safe_load(block)
        if "kind" in document:
            parse_resource(block, page.name)
        else:
            render(document)


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_every_dotted_name_exists(page: Path) -> None:
    """A dotted name in backquotes that begins like a chart value or a resource field is one."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    names = re.findall(r"`([a-z][A-Za-z]*(?:\.[a-zA-Z]+)+)(?:[:=][^`]*)?`", text)
    meant = [
        n for n in names if n.startswith("spec.") or n.partition(".")[0] in {*VALUES, *SPEC["properties"]}
    ]
    paths = [name.removeprefix("spec.").split(".") for name in meant]
    assert [path for path in paths if not in_values(path) and not in_schema(path)] == []


def in_values(path: list[str]) -> bool:
    node: Any = VALUES
    for part in path:
        if not isinstance(node, Mapping) or part not in node:
            return False
        node = node[part]
    return True


def in_schema(path: list[str]) -> bool:
    node = SPEC
    for part in path:
        if part not in node.get("properties", {}):
            return False
        node = node["properties"][part]
    return True


def test_every_patch_fits_the_first_topic() -> None:
    """Each patch of a spec in the pages turns examples/kubernetes/minimal.yaml into a valid resource."""
    patches = [
        yaml.safe_load(words[words.index("-p") + 1])
        for page in PAGES
        for words in commands(page)
        if words[:2] == ["kubectl", "patch"]
    ]
    specs = [patch["spec"] for patch in patches if "spec" in patch]
    assert len(specs) > 2
    for spec in specs:
        resource = yaml.safe_load((EXAMPLES / "minimal.yaml").read_text())
        resource["spec"] |= {"replicas": 3, **spec}
        parse_resource(yaml.safe_dump(resource), "patched")


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.yaml")), ids=by_name)
def test_every_example_is_valid(file: Path) -> None:
    """An example is a valid QueryableTopic, or of a kind that every cluster has."""
    for document in yaml.safe_load_all(file.read_text()):
        if document["kind"] == "QueryableTopic":
            parse_resource(json.dumps(document), file.name)
        else:
            assert document["kind"] in ("Deployment", "Service", "Secret", "ServiceAccount", "Job")


def test_production_example_is_complete() -> None:
    """production.yaml shows the fields that production needs, and names the Secret beside it."""
    production = yaml.safe_load((EXAMPLES / "production.yaml").read_text())["spec"]
    secret = yaml.safe_load((EXAMPLES / "kafka-client-secret.yaml").read_text())
    assert production["kafka"]["secretRef"]["name"] == secret["metadata"]["name"]
    assert secret["stringData"]["security.protocol"] == "SASL_SSL"
    assert {"resources", "topologySpreadConstraints"} <= production["podTemplate"].keys()
    assert {"storage", "standbyReplicas", "rollout"} <= production.keys()
    assert {path.partition(".")[0] for path in CHANGES} >= production.keys()


def test_every_right_is_explained() -> None:
    """The tables of rbac.md contain each rule of the chart, and no other."""
    rendered = render()
    given = {
        (f"{resource}.{group}".rstrip("."), " ".join(rule["verbs"]))
        for role in rendered.all("Role", "ClusterRole")
        if role["metadata"]["name"].endswith("queryable-topics")
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    page = (ROOT / "docs" / "rbac.md").read_text().partition("## People")[0]
    rows = re.findall(r"^\| `([a-z./0-9]+)` \| ([a-z ]+) \|", page, re.MULTILINE)
    explained = {
        (name if "queryabletopics" not in name else f"{name}.queryabletopics.io", verbs)
        for name, verbs in rows
    }
    assert explained - given == {("leases.coordination.k8s.io", "get create update")}
    assert given <= explained


def test_every_reason_exists() -> None:
    """A CamelCase word in backquotes is a reason or a phase of the operator or of the schema."""
    sources = "".join(path.read_text() for path in (ROOT / "operator" / "queryable_operator").rglob("*.py"))
    known = set(re.findall(r'"([A-Z][A-Za-z]+)"', sources)) | set(re.findall(r"\b[A-Z][a-z]+\b", str(SPEC)))
    for page in PAGES:
        named = re.findall(r"`([A-Z][a-z]+(?:[A-Z][a-z]+)+)`", page.read_text())
        assert [name for name in named if name not in known | KUBERNETES] == [], page.name


def test_page_on_security_shows_the_example_of_service_accounts() -> None:
    """What the page shows of a view and of a caller's pod is in the example."""
    shown = {
        block.partition("\n")[0]: yaml.safe_load(block)
        for block in blocks(ROOT / "docs" / "security.md", "yaml")
    }
    view, _, job = yaml.safe_load_all((EXAMPLES / "service-account.yaml").read_text())
    of_page = shown["# the view"]["spec"]["auth"]
    auth = view["spec"]["auth"]
    assert {**auth["jwt"], "jwksCa": ""} == {**of_page["jwt"], "jwksCa": ""}
    assert [rule | {"equals": ""} for rule in auth["rules"]] == [r | {"equals": ""} for r in of_page["rules"]]
    assert shown["# the caller's pod"]["volumes"] == job["spec"]["template"]["spec"]["volumes"]
