"""Test how kubectl shows a resource, scales it and waits for it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from queryable_app.local.resource_file import crd
from tests.support.cluster import Namespace, Refused, kubectl

VERSION = crd()["spec"]["versions"][0]
SPEC: Mapping[str, Any] = VERSION["schema"]["openAPIV3Schema"]["properties"]["spec"]
SINCE = "2026-01-02T03:04:05Z"
REVISION = {
    "revision": "r2",
    "applicationId": "shop.users.r2",
    "specHash": "0123456789abcdef",
    "since": SINCE,
    "lag": 7,
    "hydratedPartitions": 3,
    "totalPartitions": 4,
    "progress": "3/4",
    "recordsPerSecond": 1000,
    "remainingSeconds": 60,
    "caughtUpSince": SINCE,
    "deadline": SINCE,
}
CONDITION = {"lastTransitionTime": SINCE, "observedGeneration": 1}
STATUS: Mapping[str, Any] = {
    "observedGeneration": 1,
    "phase": "HydratingCandidate",
    "url": "http://users.shop.svc:8080",
    "message": "r2 hydrates",
    "nodes": "2/3",
    "replicas": 3,
    "selector": "queryabletopics.io/view=users,queryabletopics.io/revision=r1",
    "partitions": 4,
    "placementEpoch": 9,
    "active": {**REVISION, "revision": "r1", "lag": 42},
    "candidate": REVISION,
    "previous": REVISION,
    "failedHash": "fedcba9876543210",
    "failure": {"reason": "TransformRefused", "message": "line 1 pos 7"},
    "history": [
        {"revision": "r1", "specHash": "a", "since": SINCE, "until": SINCE, "outcome": "Retired", "reason": "done"}
    ],
    "conditions": [
        {**CONDITION, "type": "Available", "status": "True", "reason": "Complete", "message": "r1 answers"},
        {**CONDITION, "type": "Progressing", "status": "True", "reason": "Hydrating", "message": "r2 hydrates"},
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def users(namespace: Namespace) -> Namespace:
    """Yield a namespace with the resource `users`, of three nodes, and a status with every field."""
    resource = {
        "apiVersion": "queryabletopics.io/v1alpha1",
        "kind": "QueryableTopic",
        "metadata": {"name": "users"},
        "spec": {
            "kafka": {"bootstrapServers": "kafka:9092"},
            "topic": "page-views",
            "replicas": 3,
            "standbyReplicas": 1,
            "paused": True,
        },
    }
    namespace.kubectl("create", "--filename", "-", stdin=json.dumps(resource))
    patch = json.dumps({"status": STATUS})
    namespace.kubectl("patch", "qt", "users", "--subresource=status", "--type=merge", "--patch", patch)
    return namespace


def columns(table: str) -> dict[str, str]:
    header, row = table.splitlines()
    return dict(zip(re.split(r" {2,}", header), re.split(r" {2,}", row), strict=True))


def leaves(schema: Mapping[str, Any], path: str = "") -> Iterator[str]:
    for name, field in schema.get("properties", {}).items():
        yield from leaves(field, f"{path}.{name}")
    if "items" in schema:
        yield from leaves(schema["items"], path)
    if "properties" not in schema and "items" not in schema:
        yield path


def paths_of(value: Any, path: str = "") -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, below in value.items():
            yield from paths_of(below, f"{path}.{name}")
    elif isinstance(value, list):
        for item in value:
            yield from paths_of(item, path)
    else:
        yield path


def test_example_status_has_every_field() -> None:
    """The status of these tests has every field of the schema's status."""
    assert set(leaves(VERSION["schema"]["openAPIV3Schema"]["properties"]["status"])) == set(paths_of(STATUS))


def test_api_server_drops_no_status_field(users: Namespace) -> None:
    """The API server drops no field of a status."""
    assert users.get("qt", "users")["status"] == STATUS


def test_list_shows_topic_and_progress(users: Namespace) -> None:
    """`kubectl get qt` shows the topic, whether the view is available, and its progress."""
    shown = columns(users.kubectl("get", "qt"))

    assert shown.pop("AGE")
    assert shown == {
        "NAME": "users",
        "TOPIC": "page-views",
        "READY": "True",
        "PHASE": "HydratingCandidate",
        "NODES": "2/3",
        "ACTIVE": "r1",
        "LAG": "42",
        "MESSAGE": "r2 hydrates",
    }


def test_wide_list_shows_the_candidate(users: Namespace) -> None:
    """`kubectl get qt -o wide` adds the candidate and its progress."""
    shown = columns(users.kubectl("get", "queryable", "--output", "wide"))

    assert [shown[name] for name in ("CANDIDATE", "PROGRESS", "MESSAGE")] == ["r2", "3/4", "r2 hydrates"]


def test_kubectl_waits_for_a_condition(users: Namespace) -> None:
    """`kubectl wait` ends when the condition is true, and not before."""
    assert "condition met" in users.kubectl("wait", "--for=condition=Available", "qt/users", "--timeout=30s")
    with pytest.raises(Refused, match="timed out"):
        users.kubectl("wait", "--for=condition=Degraded", "qt/users", "--timeout=1s")


def test_kubectl_scales_a_view(users: Namespace) -> None:
    """`kubectl scale qt` sets the number of nodes, and refuses fewer than the replicas need."""
    assert "scaled" in users.kubectl("scale", "qt/users", "--replicas=5")
    assert users.get("qt", "users")["spec"]["replicas"] == 5
    with pytest.raises(Refused, match="standbyReplicas must be smaller than replicas"):
        users.kubectl("scale", "qt/users", "--replicas=1")


def test_scale_subresource_selects_the_pods(users: Namespace) -> None:
    """The scale subresource has the number of nodes and the selector of their pods."""
    path = f"/apis/queryabletopics.io/v1alpha1/namespaces/{users.name}/queryabletopics/users/scale"

    assert json.loads(kubectl("get", "--raw", path))["status"] == {
        "replicas": STATUS["replicas"],
        "selector": STATUS["selector"],
    }


def test_kubectl_explain_lists_every_field(users: Namespace) -> None:
    """`kubectl explain --recursive` lists every field of the spec."""
    shown = set(re.findall(r"^ +(\w+)\t", users.kubectl("explain", "qt.spec", "--recursive"), re.MULTILINE))

    assert {name for path in leaves(SPEC) for name in path.split(".")[1:]} - shown == set()


def test_kubectl_explain_describes_each_field(users: Namespace) -> None:
    """`kubectl explain` prints the schema's description of each field."""
    for name, field in SPEC["properties"].items():
        shown = " ".join(users.kubectl("explain", f"qt.spec.{name}").split())

        assert " ".join(field["description"].split()) in shown
        for below in field.get("properties", {}).values():
            assert " ".join(below["description"].split()) in shown
