"""Test the objects of a revision whose pods have several workers."""

from __future__ import annotations

from typing import Any

import pytest

from queryable_app.contract import NodeSettings, worker_settings
from queryable_operator.build.policies import network_policy
from queryable_operator.build.services import client, headless
from queryable_operator.build.workload import pod_template
from queryable_operator.rollout.placements import new_placement
from queryable_operator.spec.pods import PodLayout
from queryable_operator.spec.quantity import quantity
from queryable_operator.spec.requirements import requirements
from tests.support.view import SETTINGS, view

TWO = view(replicas=3, standbyReplicas=1, serve={"workers": 2})
LAYOUT = PodLayout(2)


def containers() -> list[dict[str, Any]]:
    template = pod_template(TWO, 1, "shop.users.r1", "node:1", "hash", SETTINGS)
    found: list[dict[str, Any]] = template["spec"]["containers"]
    return found


def environment(container: int, index: int) -> dict[str, str]:
    """Return the variables of a pod's container, as Kubernetes fills them in."""
    name = f"users-r1-{index}"
    from_pod = {"QT_NAME": name, "QT_ORDINAL": str(index)}
    return {
        variable["name"]: str(variable.get("value", from_pod.get(variable["name"]))).replace(
            "$(QT_NAME)", name
        )
        for variable in containers()[container]["env"]
    }


@pytest.mark.parametrize("container", [0, 1], ids=["serve", "ingest"])
def test_workers_are_the_nodes_of_the_placement(container: int) -> None:
    """Both processes of each pod find the nodes, with the ordinals and addresses that the placement has."""
    placement = new_placement(TWO, 1, "shop.users.r1", 8, "cluster.local", LAYOUT)
    nodes = [
        node
        for index in range(3)
        for node in worker_settings(NodeSettings.from_env(environment(container, index)))
    ]

    assert [node.ordinal for node in nodes] == list(range(6))
    assert tuple(node.advertised_url for node in nodes) == placement.addresses


def test_first_placement_has_no_two_replicas_in_a_pod() -> None:
    """A pod is lost as one, with all of its workers."""
    placement = new_placement(TWO, 1, "shop.users.r1", 30, "cluster.local", LAYOUT)

    assert all(len({LAYOUT.pod_of(o) for o in serving}) == 2 for serving in placement.serving)
    assert {len(placement.assigned_to(ordinal)) for ordinal in range(6)} == {10}


def test_pod_has_a_port_for_each_worker() -> None:
    """The front port keeps its name, and probes use it; each worker's own port has a name, too."""
    serve, ingest = containers()

    assert [(port["name"], port["containerPort"]) for port in serve["ports"]] == [
        ("http", 8080),
        ("worker-0", 8081),
        ("worker-1", 8082),
    ]
    assert {serve[f"{kind}Probe"]["httpGet"]["port"] for kind in ("startup", "liveness", "readiness")} == {
        "http"
    }
    assert "ports" not in ingest


def test_headless_service_names_the_ports_of_workers() -> None:
    """Nodes and clients reach each worker; the client Service has the front port only."""
    assert [(p["port"], p["targetPort"]) for p in headless(TWO, 1, LAYOUT)["spec"]["ports"]] == [
        (8080, "http"),
        (8081, "worker-0"),
        (8082, "worker-1"),
    ]
    assert [p["targetPort"] for p in client(TWO, 1)["spec"]["ports"]] == ["http"]


def test_network_policy_admits_the_workers_of_every_revision() -> None:
    """While a revision with more workers takes over, the pods of both accept connections."""
    spec = network_policy(TWO, SETTINGS, [PodLayout(), PodLayout(4), PodLayout(2)])["spec"]

    assert spec["ingress"][0]["ports"] == [
        {"protocol": "TCP", "port": 8080},
        {"protocol": "TCP", "port": 8081, "endPort": 8084},
    ]


def test_workers_share_out_the_caches() -> None:
    """Each worker needs the memory of a process; caches and bounds are those of one node."""
    computed = requirements(TWO.raw, "serve")

    assert computed == {
        "requests": {"cpu": "200m", "memory": f"{2 * 150 + 40 + 320}Mi"},
        "limits": {"memory": f"{2 * 150 + 40 + 320 + 192 + 2 * 128}Mi"},
    }
    most = requirements(view(serve={"workers": 64}).raw, "serve")
    assert quantity(most["limits"]["memory"]) > quantity(most["requests"]["memory"]) > 64 * 150 * 2**20
