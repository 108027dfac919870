"""Check the resource's invariants against every single action of a history."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from queryable_app.config.topic_spec import duration_ms
from queryable_operator.build.settings_map import record_of
from queryable_operator.decide.actions import TopicDeletion
from queryable_operator.report.status import service_of
from queryable_operator.rollout.live_revision import LiveRevision, revisions_of
from queryable_operator.rollout.pod import seconds_of
from queryable_operator.spec import names
from queryable_operator.spec.observed import Observed, Ref
from queryable_operator.spec.pods import PodLayout
from tests.operator.histories.cluster import Cluster, is_ready
from tests.operator.histories.operator import Operator

_TOLERATED_SECONDS = 60.0  # a decision may still count on a replica that was destroyed this recently
_HUNG_SECONDS = 600.0  # the same, for a node that receives the decision only now
_LATE_SECONDS = 240.0  # a deadline may be this late while the operator often restarts
_OF_REVISION = ("ConfigMap", "PodDisruptionBudget", "Secret", "Service", "StatefulSet")


@dataclass
class Guarantees:
    cluster: Cluster
    operator: Operator
    available: set[int] = field(default_factory=set)
    """Revisions that once served every partition."""

    service_was_touched: bool = False
    """A user has edited the Service, and the operator has not reverted it yet."""

    status_was_touched: bool = False
    destroyed: dict[tuple[int, int], float] = field(default_factory=dict)
    """The time at which a fault last destroyed a complete replica, by revision and partition."""

    failed: tuple[str, int, int | None] | None = None
    """The hash that failed, with the generation and number of partitions at which it failed."""

    evicted: dict[int, str] = field(default_factory=dict)
    """The last evicted pod of each revision, until it is ready again."""

    incomplete: dict[int, float] = field(default_factory=dict)
    """The time at which each revision was last observed to be incomplete."""

    unpaused_since: float = 0.0

    # --- at any moment

    def check(self) -> None:
        for number in self._numbers():
            if self.is_serving(number):
                self.available.add(number)
        self._service_selects_an_available_revision()
        self._no_last_replica_was_abandoned()
        self._deadlines_fire()
        for number, name in list(self.evicted.items()):
            pod = self.cluster.api.get("Pod", name)
            if pod is None or is_ready(pod) or number not in self._numbers():
                del self.evicted[number]

    def note_observed(self, observed: Observed | None) -> None:
        """Note each revision that the operator has just observed to be incomplete."""
        for number, live in revisions_of(observed).items() if observed else ():
            ready = [live.pods[ordinal].ready for ordinal in live.pods]
            complete = [
                node_status.complete == node_status.replicas for node_status in live.node_statuses.values()
            ]
            if not all(ready) or not all(complete) or len(complete) < len(live.nodes):
                self.incomplete[number] = observed.now if observed else 0.0

    def is_serving(self, number: int) -> bool:
        nodes = [n for n in self.cluster.nodes.values() if n.revision == number and n.ready]
        if not nodes:
            return False
        serving = max(nodes, key=lambda node: node.placement.epoch).placement.serving
        ready = {
            n.ordinal for n in nodes if is_ready(self.cluster.api.objects.get(Ref("Pod", n.pod), _NO_POD))
        }
        return all(ready & set(replicas) for replicas in serving)

    def no_pod_has_two_replicas(self, number: int) -> None:
        """Check a settled revision: two replicas of a partition in one pod would be lost as one."""
        record = record_of(self.cluster.api.objects[Ref("ConfigMap", names.child("users", number))])
        for serving in record.placement.serving:
            assert len({record.layout.pod_of(o) for o in serving}) == len(serving), record.placement.serving

    def _service_selects_an_available_revision(self) -> None:
        service = self.cluster.api.get("Service", "users")
        if service is None or self.service_was_touched or self.operator.gone:
            return
        at = service_of(service)
        assert not self.available or at in self.available or not self.available & {at, self._active()}, (
            f"the Service selects r{at}, which was never available; {self.available} were"
        )

    def _no_last_replica_was_abandoned(self) -> None:
        abandoned, self.cluster.abandoned = self.cluster.abandoned, []
        for node, partition in abandoned:
            if node.revision in self._retained():
                assert self._is_safe(node.revision, partition, within=_HUNG_SECONDS), (
                    f"node {node.ordinal} of r{node.revision} abandoned the last replica of partition {partition}"
                )

    def _deadlines_fire(self) -> None:
        status, spec = self.operator.resource.get("status") or {}, self.operator.resource["spec"]
        candidate = status.get("candidate")
        deleted = "deletionTimestamp" in self.operator.resource["metadata"]
        failed = candidate and candidate.get("specHash") == status.get("failedHash")
        if not candidate or failed or deleted or spec["paused"]:
            return
        deadline = duration_ms(spec["rollout"]["hydrationDeadline"], "") / 1000
        since = max(seconds_of(candidate["since"]) or 0.0, self.unpaused_since)
        late = self.cluster.now - since - deadline
        assert late < _LATE_SECONDS, f"{candidate} is {late} s late"

    # --- at each action

    def watch(self, action: str, what: Any, observed: Observed) -> None:
        checks: Mapping[str, Callable[[Any, Observed], None]] = {
            "apply": self._check_apply,
            "update": self._check_update,
            "evict": self._check_eviction,
            "delete": self._check_deletion,
            "force": self._check_deletion,
            "topic": self._check_topic,
            "status": self._check_status,
        }
        checks[action](what, observed)

    def _check_apply(self, manifest: Mapping[str, Any], observed: Observed) -> None:
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        if kind == "StatefulSet":
            of_revision = names.child("users", _number(Ref(kind, name)))
            for before in ("ConfigMap", "Secret"):
                assert Ref(before, of_revision) in observed.children, f"{name} is created before its {before}"
            if names.TLS_LABEL in manifest["spec"]["template"]["metadata"]["labels"]:
                assert observed.node_certificate is not None, f"{name} is created before its certificate"
        if kind == "ConfigMap" and Ref(kind, name) in self.cluster.api.objects:
            self._check_placement(manifest, self.cluster.api.objects[Ref(kind, name)])
        if (kind, name) == ("Service", "users"):
            self._check_service(service_of(manifest), observed)
            self.service_was_touched = False

    def _check_placement(self, new: Mapping[str, Any], old: Mapping[str, Any]) -> None:
        """Check that a removed replica leaves a complete one behind, which the placement contains."""
        try:
            before, after = record_of(old).placement, record_of(new).placement
        except ValueError:
            return
        number, layout = _number(Ref("ConfigMap", new["metadata"]["name"])), record_of(old).layout
        assert record_of(new).layout == layout, f"r{number} divides its volumes anew"
        for partition in range(after.partitions):
            leaving = set(before.serving[partition]) - set(after.serving[partition])
            if any(self._has_complete_replica(number, ordinal, partition, layout) for ordinal in leaving):
                staying = [
                    self._has_complete_replica(number, ordinal, partition, layout)
                    for ordinal in after.serving[partition]
                ]
                late = self.cluster.now - self.destroyed.get((number, partition), 0.0) < _TOLERATED_SECONDS
                assert any(staying) or late, f"no replica of partition {partition} is left in {after.serving}"

    def _has_complete_replica(self, number: int, ordinal: int, partition: int, layout: PodLayout) -> bool:
        """Return whether a node has a complete replica, as far as known by now."""
        pod = names.pod("users", number, layout.pod_of(ordinal))
        claim = self.cluster.api.get("PersistentVolumeClaim", f"data-{pod}")
        disk = self.cluster.disks.get((claim["metadata"]["uid"], layout.port_of(ordinal))) if claim else None
        lost = disk is None or (disk.lost_at or self.cluster.now) < self.cluster.now - _TOLERATED_SECONDS
        return disk is not None and not lost and disk.replicas.get(partition, 0.0) >= 1

    def _check_service(self, target: int | None, observed: Observed) -> None:
        there = service_of(observed.children.get(Ref("Service", "users")))
        status = self.operator.resource.get("status") or {}
        if target == names.revision_number((status.get("candidate") or {}).get("revision")):
            assert status["phase"] == "CuttingOver", "the Service switches before status has the phase"
        if target in (None, there) or there not in self.available:
            return
        if target in self.available and there != self._active():
            return  # the switch is reverted
        live_revisions = revisions_of(observed)
        ready, before = (
            len(live_revisions[number].ready) if number in live_revisions else 0 for number in (target, there)
        )
        wanted = observed.resource["spec"]["replicas"]
        assert ready >= max(1, min(before, wanted)), f"{ready} of r{target} take over from {before}"

    def _check_update(self, node_updates: Any, observed: Observed) -> None:
        config_map = observed.children[Ref("ConfigMap", names.child("users", node_updates.revision))]
        if node_updates.placement is not None:
            assert node_updates.placement == record_of(config_map).placement, (
                "a node gets a placement before it is written"
            )

    def _check_eviction(self, ref: Ref, observed: Observed) -> None:
        number, name = _number(ref), ref.name
        pod = self.cluster.api.get("Pod", name)
        if pod is None or not is_ready(pod):
            return
        live = revisions_of(observed)[number]
        if name not in {live.pods[index].name for index in live.ready}:
            return  # it has become ready since the observation
        assert live.ready == live.pods.keys(), f"{name} is evicted while others are not ready"
        self._restarted_pods_have_caught_up(live, observed)
        assert number not in self.evicted or self.evicted[number] == name, (
            f"{name} is evicted while {self.evicted[number]} is not ready again"
        )
        self.evicted[number] = name

    def _restarted_pods_have_caught_up(self, live: LiveRevision, observed: Observed) -> None:
        secret = observed.children[Ref("Secret", names.child("users", live.number))]
        token_made = seconds_of(secret["metadata"]["creationTimestamp"]) or 0.0
        template = live.objects["StatefulSet"]["status"]["updateRevision"]
        for index, pod in live.pods.items():
            behind = any(self._is_behind(live, ordinal) for ordinal in live.layout.nodes_of(index))
            old = pod.template != template or pod.created < token_made
            assert old or not behind, f"the next pod restarts before {pod.name} has caught up"

    def _is_behind(self, live: LiveRevision, ordinal: int) -> bool:
        assert live.record is not None
        serves = {p for p, serving in enumerate(live.record.placement.serving) if ordinal in serving}
        node_status = live.node_statuses.get(ordinal)
        return node_status is None or not serves <= node_status.seen.caught_up

    def _check_deletion(self, ref: Ref, observed: Observed) -> None:
        if "deletionTimestamp" in self.operator.resource["metadata"]:
            return
        number = _number(ref)
        of_executors = ref.name in (names.executors("users", number), names.rekey_job("users", number))
        if of_executors and ref.kind in ("Service", "StatefulSet"):
            unasked = not self.operator.resource["spec"].get("ingest", {}).get("executors")
            unasked = unasked and ref != Ref("StatefulSet", names.rekey_job("users", number))
            assert unasked or number not in self._retained(), (
                f"{ref} is deleted, and the spec asks for executors"
            )
        elif ref.kind in _OF_REVISION:
            assert number not in self._retained(), f"{ref} is deleted, and status names its revision"
            assert number != service_of(self.cluster.api.get("Service", "users")), (
                f"{ref} is deleted while the Service selects its revision"
            )
            self._was_retired_for_a_while(number)
        if ref.kind == "PersistentVolumeClaim" and number in self._retained():
            self._check_volume_deletion(ref, number)

    def _check_topic(self, deletion: TopicDeletion, observed: Observed) -> None:
        prefix = self.cluster.application_id(0).rpartition(".r0-")[0]
        number = names.revision_number(deletion.topic.removeprefix(f"{prefix}.").partition("-")[0])
        assert number is not None, deletion
        if deletion.before_start:
            used = [disk for disk in self.cluster.disks.values() if self._is_of(disk, number)]
            assert not used, f"{deletion} is of a revision that has started"
        else:
            assert number not in self._retained(), f"{deletion} is of a living revision"
            assert number != service_of(self.cluster.api.get("Service", "users")), deletion
        running = [
            pod
            for pod in self.cluster.api.of("Pod")
            if _number(Ref("Pod", pod["metadata"]["name"])) == number
        ]
        assert not running, f"{deletion.topic} is deleted while {running[0]['metadata']['name']} runs"

    def _was_retired_for_a_while(self, number: int) -> None:
        previous = (self.operator.resource.get("status") or {}).get("previous") or {}
        if previous.get("revision") == names.revision_text(number):
            since = seconds_of(previous["since"]) or 0.0
            assert self.cluster.now >= since + 9, (
                f"r{number} is removed while clients may use open connections"
            )

    def _check_volume_deletion(self, ref: Ref, number: int) -> None:
        uid = self.cluster.api.objects[ref]["metadata"]["uid"]
        for disk in self.cluster.disks_of(uid):
            if disk.lost_at is not None:  # later decisions were made without it
                self.note_destroyed(number, disk.replicas)
            for partition, there in disk.replicas.items() if disk.lost_at is None else ():
                assert there < 1 or self._is_safe(number, partition, without=uid), (
                    f"{ref.name} has the last replica of partition {partition}"
                )

    def _check_status(self, new: Mapping[str, Any], observed: Observed) -> None:
        old = self.operator.resource.get("status") or {}
        if not self.status_was_touched:
            self._active_changes_at_the_cut_over_only(old, new, observed)
        self._failed_hashes_stay_failed(old, new)
        if new.get("phase") == "CuttingOver" != old.get("phase") and not self.status_was_touched:
            self._was_complete_for_a_while(new["candidate"], observed)
        self.status_was_touched = False

    def _active_changes_at_the_cut_over_only(
        self, old: Mapping[str, Any], new: Mapping[str, Any], observed: Observed
    ) -> None:
        before, after = old.get("active"), new.get("active")
        if not before:
            return
        assert after, "status loses the active revision"
        if before["revision"] == after["revision"]:
            assert before["specHash"] == after["specHash"]
            return
        if old["phase"] == "Provisioning" and not new.get("candidate"):
            assert names.revision_number(before["revision"]) not in revisions_of(observed)
            return  # the revision had no objects yet
        assert old["phase"] == "CuttingOver"
        candidate = old["candidate"]
        assert (candidate["revision"], candidate["specHash"]) == (after["revision"], after["specHash"])
        assert new["previous"]["revision"] == before["revision"]
        self._takes_over(before["revision"], after["revision"], observed)

    def _was_complete_for_a_while(self, candidate: Mapping[str, Any], observed: Observed) -> None:
        number = names.revision_number(candidate["revision"]) or 0
        stable = duration_ms(observed.resource["spec"]["rollout"]["stable"], "") / 1000
        since = self.incomplete.get(number, 0.0)
        assert observed.now - since >= stable, f"r{number} was incomplete {observed.now - since} s ago"

    def _takes_over(self, old: str, new: str, observed: Observed) -> None:
        at = service_of(observed.children.get(Ref("Service", "users")))
        assert names.revision_text(at or 0) == new, (
            "status makes it active before the Service is observed to select it"
        )
        live_revisions, number = revisions_of(observed), names.revision_number(old) or 0
        before = len(live_revisions[number].ready) if number in live_revisions else 0
        endpoints = [pod for pod in observed.endpoints if pod.startswith(f"users-{new}-")]
        assert len(endpoints) >= max(1, min(before, observed.resource["spec"]["replicas"])), (
            "too few endpoints"
        )

    def _failed_hashes_stay_failed(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        at = (self.operator.resource["metadata"]["generation"], self.cluster.partitions)
        if new.get("failedHash") and new.get("failedHash") != old.get("failedHash"):
            self.failed = (new["failedHash"], *at)
        begun = (new.get("candidate") or {}).get("specHash")
        was = (old.get("candidate") or {}).get("specHash")
        if begun and begun != was and not self.status_was_touched and self.failed is not None:
            assert self.failed != (begun, *at), f"{begun} has failed and is tried again"

    # --- helpers

    def note_destroyed(self, revision: int, replicas: Mapping[int, float]) -> None:
        for partition, there in replicas.items():
            if there >= 1:
                self.destroyed[revision, partition] = self.cluster.now

    def _is_safe(
        self, revision: int, partition: int, without: str = "", within: float = _TOLERATED_SECONDS
    ) -> bool:
        now = self.cluster.now
        if now - self.destroyed.get((revision, partition), 0.0) < within:
            return True
        disks = [d for d in self.cluster.disks.values() if d.uid != without and self._is_of(d, revision)]
        return any(
            disk.replicas.get(partition, 0.0) >= 1 and (disk.lost_at is None or now - disk.lost_at < within)
            for disk in disks
        )

    def _is_of(self, disk: Any, revision: int) -> bool:
        uid = self.operator.resource["metadata"]["uid"]
        application_id = names.application_id("default", "users", revision, uid)
        return disk.placement is not None and disk.placement.application_id == application_id

    def _numbers(self) -> set[int]:
        return {node.revision for node in self.cluster.nodes.values()}

    def _retained(self) -> set[int]:
        status = self.operator.resource.get("status") or {}
        there = [(status.get(role) or {}).get("revision") for role in ("active", "candidate")]
        return {number for text in there if (number := names.revision_number(text)) is not None}

    def _active(self) -> int | None:
        status = self.operator.resource.get("status") or {}
        return names.revision_number((status.get("active") or {}).get("revision"))


_NO_POD: dict[str, Any] = {"metadata": {}, "status": {}}


def _number(ref: Ref) -> int:
    name = ref.name.removeprefix("data-").replace("-rekey", "").replace("-executor", "")
    for part in (name, name.rpartition("-")[0]):
        number = names.revision_number(part.rpartition("-")[2])
        if number is not None:
            return number
    return 0
