"""Test the observation of a view's pods and updates to nodes, with nodes that record requests."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from queryable_app.config.topic_spec import SpecError
from queryable_app.config.value_schema import SchemaSource
from queryable_app.placement.assignment import Placement, initial_placement
from queryable_app.placement.controller import NodeObservation
from queryable_operator.act.nodes import Node, NodeKey, NodeRefused, Nodes
from queryable_operator.act.reconciler import Reconciler
from queryable_operator.build.settings_map import RevisionRecord
from queryable_operator.build.settings_map import config_map as settings_map
from queryable_operator.decide.actions import NodeUpdate, Plan
from queryable_operator.spec import names
from queryable_operator.spec.changes import spec_hash
from queryable_operator.spec.observed import Manifest, NodeStatus, Observed, Ref
from queryable_operator.spec.resource import view_of
from tests.support.fake_api import Refuse, Request
from tests.support.operating import Operating, config_map, operating

STATUS = NodeStatus(
    NodeObservation(0.0, 1, frozenset({0})), True, {}, 1, 1, 0, 0.0, None, 1, "murmur2", 0, False
)
PLACEMENT = initial_placement("a.v.r1", 1, ["http://v-r1-0.v-r1.a.svc:8080"], 1)


class _Nodes(Nodes):
    def __init__(self) -> None:
        self.requested: list[dict[Node, str]] = []
        self.before: list[Mapping[NodeKey, NodeStatus]] = []
        self.sent: list[tuple[Node, str, object]] = []
        self.refuses = False

    async def statuses(
        self, nodes: Mapping[Node, str], before: Mapping[NodeKey, NodeStatus]
    ) -> dict[int, dict[int, NodeStatus]]:
        self.requested.append(dict(nodes))
        self.before.append(dict(before))
        by_revision: dict[int, dict[int, NodeStatus]] = {}
        for node in nodes:
            by_revision.setdefault(node.revision, {})[node.ordinal] = STATUS
        return by_revision

    async def send_placement(self, node: Node, token: str, placement: Placement) -> None:
        self._send(node, token, placement)

    async def send_read_settings(self, node: Node, token: str, read: Mapping[str, Any]) -> None:
        self._send(node, token, read)

    def _send(self, node: Node, token: str, what: object) -> None:
        self.sent.append((node, token, what))
        if self.refuses:
            raise NodeRefused("it does not answer")


@pytest.fixture
def nodes() -> _Nodes:
    return _Nodes()


@pytest.fixture
def operator(nodes: _Nodes) -> Iterator[Operating]:
    with operating() as operator:
        operator.dependencies = replace(operator.dependencies, nodes=nodes)
        operator.reconciler = Reconciler(("a", "v"), operator.dependencies)
        yield operator


def _pod(
    name: str = "v-r1-0", *, ip: str | None = "10.0.0.1", phase: str = "Running", owner: str = "StatefulSet"
) -> Any:
    meta = {
        "name": name,
        "namespace": "a",
        "labels": dict(names.selector("v", 1)),
        "ownerReferences": [{"kind": owner, "name": "v-r1", "uid": "sts"}],
        "uid": f"uid of {name}",
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": meta,
        "spec": {},
        "status": {"phase": phase, "podIP": ip},
    }


def _secret(operator: Operating) -> None:
    """Create the token Secret as an earlier operator did."""
    uid = operator.api.get(names.KIND, "a", "v")["metadata"]["uid"]  # type: ignore[index]
    owner = {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": "v", "uid": uid, "controller": True}
    meta = {"name": "v-r1", "namespace": "a", "ownerReferences": [owner]}
    data = {"token": base64.b64encode(b"it").decode()}
    operator.api.put({"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": data})


def _map(observed: Observed) -> Plan:
    return Plan(apply=(config_map(observed, 1, **{"placement.json": PLACEMENT.to_json()}),))


def _record(observed: Observed, workers: int) -> Manifest:
    """Return the ConfigMap of a revision with this number of workers."""
    of = view_of(observed.resource)
    spec = {**of.raw, "serve": {"workers": workers}}
    partitions = PLACEMENT.partitions
    return settings_map(of, 1, RevisionRecord(spec, PLACEMENT, {}, {}, "hash", "roll", partitions, "image"))


def _after_one_pass(operator: Operating, plan: Plan) -> None:
    """Execute the plan in a pass that observes the ConfigMap and the token of the revision."""

    async def passes() -> None:
        await operator.run_pass(_map)
        await operator.run_pass(lambda _: plan)

    asyncio.run(passes())


def test_nodes_are_requested_by_pod_address(operator: Operating, nodes: _Nodes) -> None:
    """Requests carry the revision's token and the epoch in its ConfigMap."""
    operator.api.put(_pod())
    _secret(operator)
    _after_one_pass(operator, Plan())
    assert nodes.requested[-1] == {Node(1, 0, "uid of v-r1-0", "10.0.0.1", PLACEMENT.epoch): "it"}
    assert operator.observed[-1].node_statuses == {1: {0: STATUS}}
    assert nodes.before[-1] == {("uid of v-r1-0", 0): STATUS}


def test_pod_of_a_rekey_job_is_no_node(operator: Operating, nodes: _Nodes) -> None:
    """The pod of a rekey job is observed, and not requested. A pod with its label and another name is not observed."""
    job, other = _pod("v-r1-rekey-0"), _pod("v-r1-rekey-7")
    for pod in (job, other):
        pod["metadata"]["labels"] = {**names.labels("v"), names.REKEY_LABEL: "r1"}
        operator.api.put(pod)
    _secret(operator)
    _after_one_pass(operator, Plan())

    assert nodes.requested[-1] == {}
    assert Ref("Pod", "v-r1-rekey-0") in operator.observed[-1].children
    assert Ref("Pod", "v-r1-rekey-7") not in operator.observed[-1].children


def test_rekey_job_of_another_owner_is_a_name_conflict(operator: Operating) -> None:
    """A StatefulSet that has a rekey job's name and another owner is not touched."""
    meta = {"name": "v-r1-rekey", "namespace": "a", "labels": dict(names.labels("v"))}
    operator.api.put({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": meta, "spec": {}})
    _after_one_pass(operator, Plan())

    assert operator.observed[-1].name_conflicts == {Ref("StatefulSet", "v-r1-rekey")}


def test_each_worker_is_requested_at_its_own_port(operator: Operating, nodes: _Nodes) -> None:
    """The number of workers is the one that the revision records."""
    operator.api.put(_pod("v-r1-1"))
    _secret(operator)

    async def passes() -> None:
        await operator.run_pass(lambda observed: Plan(apply=(_record(observed, workers=2),)))
        await operator.run_pass(lambda _: Plan())

    asyncio.run(passes())
    uid, ip, epoch = "uid of v-r1-1", "10.0.0.1", PLACEMENT.epoch
    assert set(nodes.requested[-1]) == {Node(1, 2, uid, ip, epoch, 8081), Node(1, 3, uid, ip, epoch, 8082)}
    assert operator.observed[-1].node_statuses == {1: {2: STATUS, 3: STATUS}}


@pytest.mark.parametrize(
    "pod",
    [
        _pod(ip=None),
        _pod(phase="Pending"),
        _pod(phase="Failed"),
        _pod("v-r1-x"),
        _pod("v-r1-00"),
        _pod("another-r1-0"),
        _pod(owner="Job"),
    ],
    ids=["no address", "pending", "failed", "no ordinal", "no name of ours", "another view's", "a job's"],
)
def test_other_pods_are_not_requested(operator: Operating, nodes: _Nodes, pod: Any) -> None:
    """Pods without an address and foreign objects with our labels are not requested."""
    operator.api.put(pod)
    _after_one_pass(operator, Plan())
    assert nodes.requested[-1] == {}


def test_node_update_carries_the_token(operator: Operating, nodes: _Nodes) -> None:
    """A node update has the token, the placement and the read settings; a missing node is skipped."""
    operator.api.put(_pod())
    _secret(operator)
    _after_one_pass(
        operator,
        Plan(node_updates=(NodeUpdate(1, 0, PLACEMENT, {"consistency": "any"}), NodeUpdate(1, 7, PLACEMENT))),
    )
    assert [(node.ordinal, token, what) for node, token, what in nodes.sent] == [
        (0, "it", PLACEMENT),
        (0, "it", {"consistency": "any"}),
    ]


def test_refused_update_does_not_block_the_pass(operator: Operating, nodes: _Nodes) -> None:
    """Status is written, and the next pass observes that the node does not follow."""
    operator.api.put(_pod())
    _secret(operator)
    nodes.refuses = True
    _after_one_pass(operator, Plan(node_updates=(NodeUpdate(1, 0, PLACEMENT),), status={"phase": "Ready"}))
    assert operator.api.get(names.KIND, "a", "v")["status"] == {"phase": "Ready"}  # type: ignore[index]


def test_forbidden_eviction_does_not_block_the_pass(operator: Operating) -> None:
    """The next pass requests it again."""
    operator.api.put(_pod())

    def order(request: Request) -> None:
        if request.subresource == "eviction":
            raise Refuse(429, "it would violate the pod's disruption budget")

    operator.api.order = order
    _after_one_pass(operator, Plan(evict=("v-r1-0",), status={"phase": "Ready"}))
    assert operator.api.get("Pod", "a", "v-r1-0") is not None
    assert operator.api.get(names.KIND, "a", "v")["status"] == {"phase": "Ready"}  # type: ignore[index]


def test_eviction_and_deletion_have_the_observed_uid(operator: Operating) -> None:
    """An unobserved pod is neither evicted nor deleted."""
    operator.api.put(_pod())
    _after_one_pass(operator, Plan(evict=("v-r1-0", "v-r1-1"), force_delete=(Ref("Pod", "v-r1-2"),)))
    evictions = [request for request in operator.api.writes() if request.plural == "pods"]
    assert [(r.name, r.body["deleteOptions"]["preconditions"]["uid"]) for r in evictions] == [
        ("v-r1-0", "uid of v-r1-0")
    ]


def test_endpoints_are_the_client_services(operator: Operating) -> None:
    """The headless Services list every pod, ready or not."""
    for service in ("v", "v-r1"):
        labels = {names.VIEW_LABEL: "v", "kubernetes.io/service-name": service}
        meta = {"name": f"{service}-abc", "namespace": "a", "labels": labels}
        target = {"kind": "Pod", "name": f"{service}-0"}
        operator.api.put({"kind": "EndpointSlice", "metadata": meta, "endpoints": [{"targetRef": target}]})
    asyncio.run(operator.run_pass())
    assert operator.observed[0].endpoints == {"v-0"}
    assert operator.observed[0].children == {}


def test_volume_claim_is_recognized_by_name(operator: Operating) -> None:
    """A volume claim belongs to a view by its name, since it has no owner and may outlive its StatefulSet."""
    meta = {"name": "data-v-r1-0", "namespace": "a", "labels": dict(names.selector("v", 1))}
    operator.api.put({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta})
    operator.api.put({"kind": "PersistentVolumeClaim", "metadata": {**meta, "name": "mine"}})
    asyncio.run(operator.run_pass())
    assert list(operator.observed[0].children) == [Ref("PersistentVolumeClaim", "data-v-r1-0")]
    assert operator.observed[0].name_conflicts == frozenset()


def test_schema_of_a_config_map_is_part_of_the_spec(operator: Operating) -> None:
    """The text of the ConfigMap stands in the observed spec, so that another text is another spec. Without it the reference
    stays, and is refused by name."""
    resource = operator.api.get(names.KIND, "a", "v")
    assert resource is not None
    reference = {"configMapRef": {"name": "schemas", "key": "user"}}
    value = {"format": "avro", "schemaFrom": reference}
    operator.api.put({**resource, "spec": {**resource["spec"], "value": value}})
    asyncio.run(operator.run_pass())
    with pytest.raises(
        SpecError, match=r"spec\.value\.schemaFrom\.configMapRef: the ConfigMap schemas with the key user"
    ):
        view_of(operator.observed[-1].resource)
    hashes = []
    for text in ('"int"', '"long"'):
        metadata = {"name": "schemas", "namespace": "a"}
        operator.api.put(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"user": text}}
        )
        asyncio.run(operator.run_pass())
        of = view_of(operator.observed[-1].resource)
        assert of.spec.schema_source == SchemaSource(text)
        hashes.append(spec_hash(of.raw, 1))
    assert hashes[0] != hashes[1]
