"""The Services of a view."""

from __future__ import annotations

from queryable_operator.build.services import client, headless
from tests.support.view import view


def test_clients_reach_the_active_revision() -> None:
    """The client Service is called as the view is, and its selector names one revision."""
    service = client(view(), 3)

    assert service["metadata"]["name"] == "users"
    assert service["spec"]["selector"] == {
        "queryabletopics.io/view": "users",
        "queryabletopics.io/revision": "r3",
    }


def test_the_port_and_annotations_are_the_resources() -> None:
    """The Service listens where it was asked to, and sends to the port of the pods by its name."""
    service = client(view(service={"port": 80, "annotations": {"example.com/a": "b"}}), 1)

    assert service["spec"]["ports"] == [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": "http"}]
    assert service["metadata"]["annotations"]["example.com/a"] == "b"


def test_the_client_service_is_of_no_revision() -> None:
    """What outlives a revision has none of its labels."""
    assert "queryabletopics.io/revision" not in client(view(), 1)["metadata"]["labels"]


def test_nodes_find_one_another_before_they_are_ready() -> None:
    """Pods of a revision have names from the moment they have addresses."""
    service = headless(view(), 2)

    assert service["metadata"]["name"] == "users-r2"
    assert (service["spec"]["clusterIP"], service["spec"]["publishNotReadyAddresses"]) == ("None", True)
