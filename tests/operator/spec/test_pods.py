"""Test the conversion between nodes and pods."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from queryable_app.contract import WORKERS_MAX, NodeSettings, worker_settings
from queryable_operator.spec import names
from queryable_operator.spec.pods import PodIndex, PodLayout

LAYOUTS = st.integers(1, WORKERS_MAX).map(PodLayout)
PODS = st.integers(0, 200).map(PodIndex)


@given(LAYOUTS, PODS)
def test_operator_and_pod_number_the_nodes_alike(layout: PodLayout, pod: PodIndex) -> None:
    """The ordinals, ports and addresses that the operator computes are those that a pod gives its workers."""
    url = names.advertised_url("shop", "users", 1, pod, "cluster.local")
    settings = NodeSettings(
        name=f"users-r1-{pod}",
        ordinal=pod,
        application_id="shop.users.r1",
        spec_path="spec",
        bootstrap_servers="kafka:9092",
        advertised_url=url,
        data_dir="data",
        run_dir="run",
        placement_path="placement",
        worker_ports=layout.ports_text,
    )
    nodes = worker_settings(settings)

    assert [node.ordinal for node in nodes] == list(layout.nodes_of(pod))
    assert [node.http_port for node in nodes] == [layout.port_of(o) for o in layout.nodes_of(pod)]
    assert [node.advertised_url for node in nodes] == [
        names.advertised_url("shop", "users", 1, pod, "cluster.local", layout.port_of(o))
        for o in layout.nodes_of(pod)
    ]


@given(LAYOUTS, st.integers(0, 200))
def test_every_node_is_in_one_pod(layout: PodLayout, pods: int) -> None:
    """The pods divide the nodes, and enough pods for all nodes are no more than there are."""
    each = [list(layout.nodes_of(PodIndex(pod))) for pod in range(pods)]

    assert [ordinal for nodes in each for ordinal in nodes] == list(layout.nodes(pods))
    assert layout.nodes_in(PodIndex(pod) for pod in range(pods)) == set(layout.nodes(pods))
    assert all(layout.pod_of(o) == pod for pod, nodes in enumerate(each) for o in nodes)
    assert layout.pods_with(len(layout.nodes(pods))) == pods


@given(LAYOUTS, st.integers(1, 1000))
def test_pod_stays_until_its_last_node_has_left(layout: PodLayout, nodes: int) -> None:
    """As many pods are needed as the node with the highest ordinal says."""
    assert layout.pods_with(nodes) == layout.pod_of(nodes - 1) + 1


def test_pod_with_one_worker_is_the_node() -> None:
    """A revision without a recorded number has one node in each pod, at the pod's own port."""
    layout = PodLayout.of({})

    assert (layout.workers, layout.worker_ports, layout.ports_text, layout.port_of(3)) == (1, {}, "", 8080)
    assert (layout.title(3, "users-r1-3"), layout.noun) == ("node 3", "node")


def test_node_of_several_is_named_with_its_pod() -> None:
    """A message names the pod, which is what Kubernetes shows."""
    layout = PodLayout.of({"serve": {"workers": 2}})

    assert layout.worker_ports == {"worker-0": 8081, "worker-1": 8082}
    assert (layout.title(3, "users-r1-1"), layout.noun) == ("node 3 in users-r1-1", "pod")
