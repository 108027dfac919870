"""Run a random history of one resource from a seed: actions of users, faults of hosts, Kafka and the operator."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from queryable_operator.report.conditions import conditions_by_type
from queryable_operator.rollout.pod import text_of
from queryable_operator.spec import names
from queryable_operator.spec.defaults import with_defaults
from queryable_operator.spec.observed import Ref
from tests.operator.histories.cluster import Cluster, SimulatedHost
from tests.operator.histories.faults import FAULTS
from tests.operator.histories.guarantees import Guarantees
from tests.operator.histories.operator import Operator

_PASSES_SECONDS = (0.5, 1, 1, 2, 3, 5, 10)
_IDLE_SECONDS = 60.0


def resource(**spec: Any) -> dict[str, Any]:
    rollout = {"hydrationDeadline": "1m", "stable": "5s"}
    given = {
        "kafka": {"bootstrapServers": "kafka:9092"},
        "topic": "users",
        "storage": {},
        "rollout": rollout,
        "replaceAfter": "20s",
    }
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {
            "name": "users",
            "namespace": "default",
            "uid": "the-resource",
            "generation": 1,
            "resourceVersion": "1",
            "finalizers": [names.FINALIZER],
        },
        "spec": with_defaults({**given, **spec}),
    }


@dataclass
class History:
    random: random.Random
    cluster: Cluster
    operator: Operator
    guarantees: Guarantees
    story: list[str] = field(default_factory=list)
    faults: Sequence[Callable[[History], None]] = FAULTS

    @staticmethod
    def begin(seed: int, **spec: Any) -> History:
        chance = random.Random(seed)
        hosts = {f"host-{n}": SimulatedHost(f"zone-{n % chance.choice((1, 2))}") for n in range(6)}
        cluster = Cluster(chance, hosts, partitions=chance.choice((1, 3, 5)))
        replicas = chance.choice((1, 2, 3))
        spec = {"replicas": replicas, "standbyReplicas": chance.randrange(min(replicas, 2)), **spec}
        operator = Operator(cluster, resource(**spec), hosts_are_seen=chance.random() < 0.8)
        history = History(chance, cluster, operator, Guarantees(cluster, operator))
        operator.watcher = history.guarantees.watch
        return history

    # --- time

    def run_passes(self, passes: int, fault_chance: float = 0.0, crash_chance: float = 0.0) -> None:
        for _ in range(passes):
            if self.random.random() < fault_chance:
                fault = self.random.choice(self.faults)
                self.story.append(f"{self.cluster.now - 1e6:.0f} {fault.__name__}")
                fault(self)
            self.repair_some(0.1)
            self.run_pass(crash_chance)
            self.pass_time(self.random.choice(_PASSES_SECONDS))

    def run_pass(self, crash_chance: float = 0.0) -> None:
        if self.operator.gone:
            return
        ends = self.random.randrange(12) if self.random.random() < crash_chance else None
        stale = self.random.random() < crash_chance
        planned = self.operator.tick(stale, ends)
        self.guarantees.note_observed(self.operator.observed)
        phase = (self.operator.resource.get("status") or {}).get("phase")
        if planned.status is not None or planned.evict or planned.delete or planned.force_delete:
            self.story.append(
                f"{self.cluster.now - 1e6:.0f} {phase} {[e.reason for e in planned.events]} evict {planned.evict}"
                f" delete {[r.name for r in (*planned.delete, *planned.force_delete)]} ends={ends} stale={stale}"
            )
        self.guarantees.check()

    def pass_time(self, seconds: float) -> None:
        self.cluster.pass_time(seconds)
        self.guarantees.check()

    def settle(self, seconds: float = 1500.0) -> None:
        """Let time pass without faults until every pass has been idle for a minute."""
        until, idle_since = self.cluster.now + seconds, self.cluster.now
        while self.cluster.now < until and self.cluster.now - idle_since < _IDLE_SECONDS:
            planned = self.operator.tick()
            self.guarantees.note_observed(self.operator.observed)
            self.guarantees.check()
            if not self.operator.is_idle(planned, self.operator.observed):
                idle_since = self.cluster.now
            self.pass_time(max(1.0, planned.requeue_seconds / 3))

    def repair_some(self, chance: float) -> None:
        """Repair some of the faults that block every pass."""
        spec = self.operator.resource["spec"]
        for flag in ("paused", "suspended"):
            if spec[flag] and self.random.random() < chance:
                spec[flag] = False
                self.guarantees.unpaused_since = self.cluster.now
                self.changed()
        if spec["standbyReplicas"] >= spec["replicas"] and self.random.random() < chance:
            spec["standbyReplicas"] = spec["replicas"] - 1
            self.changed()
        if self.random.random() < chance:
            self.cluster.kafka_is_there = True

    def heal(self) -> None:
        """Repair all faults, and make the spec valid."""
        cluster, spec = self.cluster, self.operator.resource["spec"]
        cluster.kafka_is_there, cluster.lag, cluster.partitions = True, 0, cluster.partitions or 3
        for name in list(cluster.hosts):
            cluster.recover_host(name)
        for node in cluster.nodes.values():
            node.answers, node.full = True, False
        spec.update(
            paused=False, suspended=False, redeployNonce=spec["redeployNonce"] + self.random.choice((0, 1))
        )
        spec.pop("transform", None)
        spec["standbyReplicas"] = min(spec["standbyReplicas"], spec["replicas"] - 1)
        self.changed()

    def changed(self) -> None:
        self.operator.resource["metadata"]["generation"] += 1
        self.operator.touch()

    def _is_beyond_repair(self) -> bool:
        """Return whether a user must act: the active revision's ConfigMap is lost, and the desired revision failed."""
        degraded = conditions_by_type(self.operator.resource.get("status") or {}).get("Degraded", {})
        return degraded.get("reason") == "RevisionLost"

    # --- helpers of faults

    def a_child(self, *kinds: str) -> Ref | None:
        refs = [r for r in self.cluster.api.objects if r.kind in kinds]
        return self.random.choice(refs) if refs else None

    def destroy(self, uid: str) -> None:
        for disk in self.cluster.disks_of(uid):
            if disk.placement is None:
                continue
            number = (
                names.revision_number(disk.placement.application_id.rpartition(".")[2].partition("-")[0]) or 0
            )
            self.guarantees.note_destroyed(number, disk.replicas)
        self.cluster.disks = {key: disk for key, disk in self.cluster.disks.items() if key[0] != uid}


def delete_resource(h: History) -> None:
    h.operator.resource["metadata"]["deletionTimestamp"] = text_of(h.cluster.now)
    h.operator.touch()
