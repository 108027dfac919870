"""Run the operator's pure core against the simulated cluster. The operator may end between any two actions."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import Any

from queryable_operator.build.children import child
from queryable_operator.build.settings_map import record_of
from queryable_operator.decide.actions import Event, Plan, TopicDeletion
from queryable_operator.decide.drift import difference
from queryable_operator.decide.plan import plan
from queryable_operator.rollout.live_revision import layout_of
from queryable_operator.spec import names
from queryable_operator.spec.certificates import LIFE_SECONDS, CertificateStep, NodeCertificate
from queryable_operator.spec.observed import (
    KafkaUnreachable,
    Manifest,
    NodeStatus,
    Observed,
    Ref,
    TopicFound,
    TopicMissing,
)
from queryable_operator.spec.pods import PodIndex
from queryable_operator.spec.resource import identity_of
from queryable_operator.spec.settings import OperatorSettings
from tests.operator.histories.api import Conflict
from tests.operator.histories.cluster import Cluster, is_executor, rekey_revision
from tests.operator.histories.nodes import NodeKey, silent

SETTINGS = OperatorSettings("example/node:1")
_OWNED = ("Pod", "PersistentVolumeClaim")
_CERTIFICATE = Ref("Secret", names.node_certificate("users"))


@dataclass
class Operator:
    cluster: Cluster
    resource: dict[str, Any]
    """The resource as the API server stores it."""

    events: list[Event] = field(default_factory=list)
    gone: bool = False
    topic_deletions: dict[str, str | None] = field(default_factory=dict)
    kafka_cleaned: bool = False
    kafka_cleanup_error: str | None = None
    kafka_secret_digest: str = ""
    hosts_are_seen: bool = True
    watcher: Callable[[str, Any, Observed], None] = lambda action, what, observed: None
    observed: Observed | None = None
    """The observation of the last plan."""

    _children: Mapping[Ref, Manifest] = field(default_factory=dict)
    _last_statuses: dict[NodeKey, NodeStatus] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cluster.api.owners.add(self.resource["metadata"]["uid"])

    def observe(self, stale: bool = False) -> Observed:
        """Return an observation; a stale one has the children of the one before."""
        before, self._children = self._children, self._owned()
        children = before if stale and before else self._children
        return Observed(
            now=self.cluster.now,
            resource=json.loads(json.dumps(self.resource)),
            children=children,
            name_conflicts=self._name_conflicts(),
            hosts=self.cluster.host_views() if self.hosts_are_seen else None,
            topic=self._topic(),
            node_statuses=self._all_statuses(children),
            endpoints=self.cluster.endpoints,
            topic_deletions=dict(self.topic_deletions),
            kafka_cleaned=self.kafka_cleaned,
            kafka_cleanup_error=self.kafka_cleanup_error,
            kafka_secret_digest=self.kafka_secret_digest,
            node_certificate=self._node_certificate(),
        )

    def tick(self, stale: bool = False, actions_max: int | None = None) -> Plan:
        observed = self.observed = self.observe(stale)
        planned = plan(observed, SETTINGS)
        for number, act in enumerate(self._actions(planned, observed)):
            if actions_max is not None and number >= actions_max:
                break
            try:
                act()
            except Conflict:
                break
        return planned

    def is_idle(self, planned: Plan, observed: Observed | None) -> bool:
        """Return whether the plan has no action."""
        assert observed is not None
        same = all(
            difference(wanted, observed.children.get(_ref(wanted), {})) is None for wanted in planned.apply
        )
        actions = (
            planned.token_secrets,
            planned.certificate,
            planned.node_updates,
            planned.evict,
            planned.delete,
            planned.force_delete,
            planned.delete_topics,
            planned.events,
        )
        return same and not any(actions) and planned.status is None

    # --- observations

    def _owned(self) -> dict[Ref, Manifest]:
        """Return the children. The Secret between nodes is not watched, and observed by itself."""
        return {
            ref: live
            for ref, live in self.cluster.api.snapshot().items()
            if self._is_ours(ref, live) and ref != _CERTIFICATE
        }

    def _node_certificate(self) -> NodeCertificate | None:
        live = self.cluster.api.objects.get(_CERTIFICATE)
        return None if live is None else NodeCertificate(**json.loads(live["data"]["certificate"]))

    def _name_conflicts(self) -> frozenset[Ref]:
        return frozenset(
            ref for ref, live in self.cluster.api.objects.items() if not self._is_ours(ref, live)
        )

    def _is_ours(self, ref: Ref, live: Manifest) -> bool:
        owners = live["metadata"].get("ownerReferences") or ()
        return ref.kind in _OWNED or any(o["uid"] == self.resource["metadata"]["uid"] for o in owners)

    def _topic(self) -> Any:
        if not self.cluster.kafka_is_there:
            return KafkaUnreachable("no broker answers")
        there = self.cluster.partitions
        return TopicMissing() if there is None else TopicFound(there)

    def _all_statuses(self, children: Mapping[Ref, Manifest]) -> dict[int, dict[int, NodeStatus]]:
        by_revision: dict[int, dict[int, NodeStatus]] = {}
        cluster, last_statuses = self.cluster, {}
        epoch_of = cache(lambda revision: _epoch(children, revision))
        for ref, ordinal, key in self._nodes(children):
            node = cluster.nodes.get(key)
            answer = self._last_statuses.get(key)
            if answer is not None:
                answer = silent(answer)
            if node is not None and node.answers and cluster.hosts[node.host].up:
                with_placement = node.placement.epoch != epoch_of(node.revision)
                answer = node.report(
                    cluster.now, cluster.kafka_is_there, with_placement, cluster.lag, cluster.partitions
                )
            if answer is not None:
                last_statuses[key] = answer
                by_revision.setdefault(_place(ref.name)[0], {})[ordinal] = answer
        self._last_statuses = last_statuses
        return by_revision

    def _nodes(self, children: Mapping[Ref, Manifest]) -> Iterator[tuple[Ref, int, NodeKey]]:
        """Yield the nodes that the operator calls: their pods, their ordinals, and where they answer."""
        layout_in = cache(lambda revision: layout_of("users", revision, children))
        for ref, pod in children.items():
            if ref.kind != "Pod" or rekey_revision(pod) is not None or is_executor(pod):
                continue
            number, index = _place(ref.name)
            layout = layout_in(number)
            for ordinal in layout.nodes_of(index):
                port, uid = layout.port_of(ordinal), pod["metadata"]["uid"]
                at_front = [key for key in self.cluster.nodes if key[0] == uid] if port == 8080 else []
                yield ref, ordinal, (at_front[0] if at_front else (uid, port))

    # --- actions

    def _actions(self, planned: Plan, observed: Observed) -> Iterator[Callable[[], None]]:
        for manifest in planned.apply:
            yield lambda m=manifest: self._apply(m, planned, observed)  # type: ignore[misc]
        for ref in planned.token_secrets:
            yield lambda r=ref: self._make_secret(r, observed)  # type: ignore[misc]
        if planned.certificate is not None:
            yield lambda: self._write_certificate(planned.certificate, observed)
        for node_updates in planned.node_updates:
            yield lambda t=node_updates: self._update_node(t, observed)  # type: ignore[misc]
        for pod in planned.evict:
            yield lambda p=pod: self._delete("evict", Ref("Pod", p), observed)  # type: ignore[misc]
        for ref in planned.delete:
            yield lambda r=ref: self._delete("delete", r, observed)  # type: ignore[misc]
        for ref in planned.force_delete:
            yield lambda r=ref: self._delete("force", r, observed)  # type: ignore[misc]
        for topic in planned.delete_topics:
            yield lambda t=topic: self._delete_topic(t, observed)  # type: ignore[misc]
        if planned.clean_kafka:
            yield self._clean_kafka
        if planned.status is not None:
            yield lambda: self._write_status(planned.status, observed)
        yield lambda: self.events.extend(planned.events)
        if planned.remove_finalizer:
            yield self._release

    def _apply(self, manifest: Manifest, planned: Plan, observed: Observed) -> None:
        ref = _ref(manifest)
        there = observed.children.get(ref)
        if there is not None and difference(manifest, there) is None:
            return
        live = self.cluster.api.objects.get(ref)
        version = None
        if ref in planned.expect_unchanged:
            if there is None and live is not None:
                raise Conflict(f"{ref} has not been observed yet")
            version = there["metadata"]["resourceVersion"] if there else None
        self.watcher("apply", manifest, observed)
        self.cluster.api.apply(manifest, version)

    def _make_secret(self, ref: Ref, observed: Observed) -> None:
        revision = names.revision_number(ref.name.rpartition("-")[2])
        self.cluster.api.create(child(identity_of(observed.resource), revision, "Secret", {"data": {}}))

    def _write_certificate(self, work: Any, observed: Observed) -> None:
        now, there = observed.now, observed.node_certificate
        made = NodeCertificate(now, now + LIFE_SECONDS)
        if work.step is CertificateStep.STAGE and there is not None:
            made = replace(there, next_not_before=now)
        elif work.step is CertificateStep.PROMOTE and there is not None and there.next_not_before is not None:
            made = NodeCertificate(there.next_not_before, there.next_not_before + LIFE_SECONDS)
        data = {"certificate": json.dumps(asdict(made))}
        identity = identity_of(observed.resource)
        self.cluster.api.apply(child(identity, None, "Secret", {"data": data}, name=_CERTIFICATE.name))

    def _update_node(self, node_updates: Any, observed: Observed) -> None:
        self.watcher("update", node_updates, observed)
        for node in list(self.cluster.nodes.values()):
            if (node.revision, node.ordinal) == (
                node_updates.revision,
                node_updates.ordinal,
            ) and node.answers:
                if node_updates.placement is not None:
                    self.cluster.node_updates(node, node_updates.placement)
                if node_updates.read is not None:
                    node.read = node_updates.read

    def _delete(self, how: str, ref: Ref, observed: Observed) -> None:
        there = observed.children.get(ref)
        live = self.cluster.api.objects.get(ref)
        if live is not None and there is not None and live["metadata"]["uid"] == there["metadata"]["uid"]:
            self.watcher(how, ref, observed)
        if how == "force":
            self.cluster.api.objects.get(ref, {}).get("metadata", {}).pop("finalizers", None)
        self.cluster.api.delete(ref, there["metadata"]["uid"] if there else None, how == "force")

    def _delete_topic(self, deletion: TopicDeletion, observed: Observed) -> None:
        self.watcher("topic", deletion, observed)
        refused = None if self.cluster.may_delete_topics else "TopicAuthorizationFailedError"
        if not self.cluster.kafka_is_there:
            refused = "no broker answers"
        self.topic_deletions[deletion.key] = refused
        if refused is None:
            self.cluster.internal_topics.discard(deletion.topic)
            self.cluster.deleted_topics.add(deletion.topic)

    def _clean_kafka(self) -> None:
        if self.cluster.kafka_is_there:
            self.cluster.groups.clear()
            self.cluster.internal_topics.clear()
            self.kafka_cleaned, self.kafka_cleanup_error = True, None
        else:
            self.kafka_cleanup_error = "no broker answers"

    def _write_status(self, status: Any, observed: Observed) -> None:
        if observed.resource["metadata"]["resourceVersion"] != self.resource["metadata"]["resourceVersion"]:
            raise Conflict("the resource has changed")
        self.watcher("status", status, observed)
        self.resource["status"] = copy.deepcopy(dict(status))
        self.touch()

    def touch(self) -> None:
        meta = self.resource["metadata"]
        meta["resourceVersion"] = str(int(meta["resourceVersion"]) + 1)

    def _release(self) -> None:
        self.gone = True
        self.cluster.api.owners.clear()


def _ref(manifest: Manifest) -> Ref:
    return Ref(manifest["kind"], manifest["metadata"]["name"])


def _place(pod: str) -> tuple[int, PodIndex]:
    name, _, index = pod.rpartition("-")
    return names.revision_number(name.rpartition("-")[2]) or 0, PodIndex(int(index))


def _epoch(children: Mapping[Ref, Manifest], revision: int) -> int | None:
    live = children.get(Ref("ConfigMap", names.child("users", revision)))
    try:
        return record_of(live).placement.epoch if live else None
    except ValueError:
        return None
