"""Provide the real cluster that KUBECONFIG names; without it the tests that need one are skipped."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.support.cluster import CRD_FILE, Namespace, api_server, has_kubectl, kubectl
from tests.support.counting_proxy import counting_proxy
from tests.support.kafka import KafkaForTests
from tests.support.operator_in_namespace import TOPIC, Running
from tests.support.platform_on_cluster import platform as platform_in
from tests.support.view_on_cluster import Platform
from tests.support.waiting import eventually


@pytest.fixture(scope="session")
def cluster() -> Iterator[httpx.Client]:
    """Return the API server, with our CRD installed."""
    if not os.environ.get("KUBECONFIG"):
        pytest.skip("KUBECONFIG names no Kubernetes cluster; `kind create cluster` makes one")
    if not has_kubectl():
        pytest.skip("kubectl is not on the PATH")
    kubectl("apply", "--server-side", "--force-conflicts", "--filename", str(CRD_FILE))
    with api_server() as api:
        eventually("the CRD is established", lambda: _is_established(api))
        yield api


def _is_established(api: httpx.Client) -> bool:
    """Tell whether the API server serves our kind. `kubectl wait` fails on a CRD whose conditions are not written yet."""
    answer = api.get(
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/queryabletopics.queryabletopics.io"
    )
    conditions = answer.raise_for_status().json().get("status", {}).get("conditions") or ()
    return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)


@pytest.fixture(scope="module")
def namespace(cluster: httpx.Client) -> Iterator[Namespace]:
    """Yield a namespace for the tests of a file, which enforces the restricted Pod Security Standard; delete it afterwards."""
    with _namespace(cluster) as made:
        yield made


@pytest.fixture(scope="session")
def node_image(cluster: httpx.Client) -> str:
    """Return the product's image, which the cluster's nodes have."""
    image = os.environ.get("QT_TEST_IMAGE")
    if not image:
        pytest.skip("QT_TEST_IMAGE names no image that the cluster's nodes have; see CONTRIBUTING.md")
    return image


@pytest.fixture(scope="session")
def platform(cluster: httpx.Client, node_image: str) -> Iterator[Platform]:
    """Yield an operator, and in another namespace a Kafka and clients, for all tests of running views."""
    repository, _, tag = node_image.rpartition(":")
    kafka_image = os.environ.get("QT_TEST_KAFKA_IMAGE") or f"{repository}-kafka:{tag}"
    with (
        _namespace(cluster) as namespace,
        _namespace(cluster) as operators,
        platform_in(namespace, operators, node_image, kafka_image) as running,
    ):
        yield running


@pytest.fixture(scope="session")
def bootstrap(cluster: httpx.Client, kafka: KafkaForTests) -> str:
    """Create the topic of the operator's tests, and return the address of the broker, which runs beside the operator."""
    kafka.create_topic(TOPIC, 4)
    return kafka.bootstrap


@pytest.fixture
def running(cluster: httpx.Client, bootstrap: str, tmp_path: Path) -> Iterator[Running]:
    """Yield a namespace with an operator of its own, which the test starts."""
    with _namespace(cluster) as namespace, counting_proxy(str(cluster.base_url)) as proxy:
        running = Running(namespace, proxy, tmp_path / "log", bootstrap)
        try:
            yield running
        finally:
            running.close()
            namespace.release_resources()


@contextmanager
def _namespace(cluster: httpx.Client) -> Iterator[Namespace]:
    name = f"qt-test-{secrets.token_hex(4)}"
    labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
    manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
    kubectl("create", "--filename", "-", stdin=json.dumps(manifest))
    try:
        yield Namespace(name, cluster)
    finally:
        kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")
