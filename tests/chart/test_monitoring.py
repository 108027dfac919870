"""Test that alerts and the dashboard use existing metrics, and that every alert has a runbook."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from queryable_operator.build.workload import pod_template
from queryable_operator.spec import names
from tests.support.helm import CHART, render
from tests.support.view import SETTINGS, view

ROOT = Path(__file__).parents[2]
MONITORING = CHART / "files" / "monitoring"
RUNBOOKS = (ROOT / "docs" / "runbooks.md").read_text()
ENABLED = {"prometheusRule": {"enabled": True, "runbooks": "https://example.test/r", "lagSeconds": 77}}


def rules() -> list[dict[str, Any]]:
    groups = render(ENABLED).one("PrometheusRule")["spec"]["groups"]
    return [rule for group in groups for rule in group["rules"]]


def exposed() -> set[str]:
    """Return the names of all metrics in the sources of the operator and the nodes."""
    files = [
        *(ROOT / "app" / "queryable_app").rglob("*metrics.py"),
        *(ROOT / "operator" / "queryable_operator").rglob("*metrics.py"),
    ]
    return {name for file in files for name in re.findall(r'"(qt_[a-z_]+)"', file.read_text())}


def names_of(expression: str) -> Iterator[str]:
    for name in re.findall(r"\bqt_[a-z_]+", expression):
        yield re.sub(r"_(total|bucket|sum|count)$", "", name)


def expressions() -> Iterator[str]:
    yield from (rule["expr"] for rule in rules())
    dashboard = json.loads((MONITORING / "dashboard.json").read_text())
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    for variable in dashboard["templating"]["list"]:
        if isinstance(variable["query"], dict):
            yield variable["query"]["query"]


def test_every_metric_is_exposed() -> None:
    """No alert and no panel uses a missing metric."""
    known = {re.sub(r"_total$", "", name) for name in exposed()}
    assert {name for e in expressions() for name in names_of(e)} - known == set()


def test_every_alert_has_a_runbook() -> None:
    """The annotation of each alert leads to a section of docs/runbooks.md, and every section has an alert."""
    names = [rule["alert"] for rule in rules()]
    assert sorted(names) == sorted(re.findall(r"^### (\w+)$", RUNBOOKS, re.MULTILINE))
    for rule in rules():
        assert rule["annotations"]["runbook_url"] == f"https://example.test/r#{rule['alert'].lower()}"


def test_every_alert_is_complete() -> None:
    """An alert has a severity, names its object, and has no unresolved template variable."""
    for rule in rules():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"].endswith(".")
        assert "@" not in json.dumps(rule)
    assert any("> 77" in rule["expr"] for rule in rules())


def test_dashboard_is_rendered_unchanged() -> None:
    """The ConfigMap contains the file; each panel has a title, a unit and its own place."""
    config = render({"grafanaDashboard": {"enabled": True}}).one("ConfigMap")
    dashboard = json.loads(config["data"]["queryable-topics.json"])
    assert dashboard == json.loads((MONITORING / "dashboard.json").read_text())
    places = [
        (p["gridPos"]["x"] + dx, p["gridPos"]["y"] + dy)
        for p in dashboard["panels"]
        for dx in range(p["gridPos"]["w"])
        for dy in range(p["gridPos"]["h"])
    ]
    assert len(places) == len(set(places))
    assert all(p["title"] for p in dashboard["panels"])


def test_alerts_file_is_valid_yaml() -> None:
    """The file of alerts is YAML without Helm's templates, so that promtool can check it."""
    assert yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"]


def test_monitors_select_the_operators_objects() -> None:
    """Labels and ports match those of nodes and headless Services; the client Service has no revision label."""
    labels = names.revision_labels("users", 3)
    for kind in ("PodMonitor", "ServiceMonitor"):
        flag = kind[0].lower() + kind[1:]
        spec = render({flag: {"enabled": True}}).one(kind, "-nodes")["spec"]
        selector = spec["selector"]
        (expression,) = selector["matchExpressions"]
        assert selector["matchLabels"].items() <= labels.items()
        assert expression == {"key": names.REVISION_LABEL, "operator": "Exists"}
        assert spec["namespaceSelector"] == {"any": True}
        narrow = render({flag: {"enabled": True}, "watchNamespaces": ["a"]}).one(kind, "-nodes")["spec"]
        assert narrow["namespaceSelector"] == {"matchNames": ["a"]}


@pytest.mark.parametrize("kind", ["PodMonitor", "ServiceMonitor"])
def test_nodes_are_scraped_with_a_token_if_one_is_named(kind: str) -> None:
    """The values name the Secret of the token for nodes; the operator gets none, and neither does anything by default."""
    values, token = kind[0].lower() + kind[1:], {"credentials": {"name": "view-metrics", "key": "token"}}
    field = "podMetricsEndpoints" if kind == "PodMonitor" else "endpoints"
    rendered = render({values: {"enabled": True, "authorization": token}})
    (of_nodes,) = rendered.one(kind, "-nodes")["spec"][field]
    others = [each for each in rendered.all(kind) if not each["metadata"]["name"].endswith("-nodes")]
    (by_default,) = render({values: {"enabled": True}}).one(kind, "-nodes")["spec"][field]
    assert of_nodes["authorization"] == token
    assert "authorization" not in by_default
    assert others
    assert not any("authorization" in endpoint for each in others for endpoint in each["spec"][field])


@pytest.mark.parametrize("kind", ["PodMonitor", "ServiceMonitor"])
def test_nodes_that_speak_tls_are_scraped_over_https(kind: str) -> None:
    """The label of pods of a view with `tls` turns the scheme into https, and the values say how nodes are verified."""
    values = kind[0].lower() + kind[1:]
    verified = {"serverName": "views.example", "ca": {"secret": {"name": "ca", "key": "ca.crt"}}}
    with_tls, without = (
        pod_template(each, 1, "id", "image", "hash", SETTINGS)["metadata"]["labels"]
        for each in (view(tls={}), view())
    )

    for given, config in (({}, {"insecureSkipVerify": True}), ({"tlsConfig": verified}, verified)):
        spec = render({values: {"enabled": True, **given}}).one(kind, "-nodes")["spec"]
        (endpoint,) = spec["podMetricsEndpoints" if kind == "PodMonitor" else "endpoints"]
        assert endpoint["tlsConfig"] == config
    (rule,) = (each for each in endpoint["relabelings"] if each["targetLabel"] == "__scheme__")
    label = re.sub(r"[^a-zA-Z0-9]", "_", names.TLS_LABEL)
    assert rule["sourceLabels"] == [f"__meta_kubernetes_pod_label_{label}"]
    assert (with_tls[names.TLS_LABEL], rule["replacement"]) == (rule["regex"], "https")
    assert names.TLS_LABEL not in without
