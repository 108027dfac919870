"""Test the Services of a view."""

from __future__ import annotations

from queryable_operator.build.services import client, headless
from queryable_operator.spec.pods import PodLayout
from tests.support.view import view


def test_client_service_selects_the_active_revision() -> None:
    """The client Service has the view's name and selects the active revision."""
    service = client(view(), 3)

    assert service["metadata"]["name"] == "users"
    assert service["spec"]["selector"] == {
        "queryabletopics.io/view": "users",
        "queryabletopics.io/revision": "r3",
    }


def test_client_service_has_the_resources_port_and_annotations() -> None:
    """The client Service has the resource's port and annotations, and sends to the pods' port by name."""
    service = client(view(service={"port": 80, "annotations": {"example.com/a": "b"}}), 1)

    assert service["spec"]["ports"] == [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": "http"}]
    assert service["metadata"]["annotations"]["example.com/a"] == "b"


def test_client_service_has_an_address_of_each_family() -> None:
    """Kubernetes gives it both families in a dual-stack cluster, and otherwise the one of the cluster; nodes use one."""
    assert client(view(), 1)["spec"]["ipFamilyPolicy"] == "PreferDualStack"
    assert "ipFamilies" not in client(view(), 1)["spec"]
    assert "ipFamilyPolicy" not in headless(view(), 1, PodLayout())["spec"]


def test_client_service_has_no_revision_label() -> None:
    """The client Service has no revision label, since it outlives revisions."""
    assert "queryabletopics.io/revision" not in client(view(), 1)["metadata"]["labels"]


def test_nodes_find_one_another_before_they_are_ready() -> None:
    """Pods have DNS names as soon as they have addresses."""
    service = headless(view(), 2, PodLayout())

    assert service["metadata"]["name"] == "users-r2"
    assert (service["spec"]["clusterIP"], service["spec"]["publishNotReadyAddresses"]) == ("None", True)
