"""Simulate a cluster: controllers, a scheduler, hosts that can be lost, and nodes on them, each of which acts with a delay."""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import dataclass, field
from typing import Any

from queryable_app.wire.check_report import accepted, refused
from queryable_app.wire.ingest_failures import IngestFailure
from queryable_operator.report.status import service_of
from queryable_operator.rollout.pod import condition, seconds_of, text_of
from queryable_operator.spec import names
from queryable_operator.spec.observed import Host, Manifest, Ref
from queryable_operator.spec.rekeying import is_rekeyed
from tests.operator.histories.api import Api, LiveRevision
from tests.operator.histories.nodes import REFUSED, SENTENCE, Disk, Node, NodeKey

HOST_SILENT_SECONDS = 10.0
TAINT_SECONDS = 30.0


@dataclass
class SimulatedHost:
    zone: str
    up: bool = True
    down_since: float = 0.0


@dataclass
class Cluster:
    random: random.Random
    hosts: dict[str, SimulatedHost]
    now: float = 1_000_000.0
    speed: float = 0.2
    partitions: int | None = 4
    kafka_is_there: bool = True
    lag: int = 0
    nodes: dict[NodeKey, Node] = field(default_factory=dict)  # by the pod's uid
    disks: dict[NodeKey, Disk] = field(default_factory=dict)  # by the uid of the claim, or of the pod
    endpoints: frozenset[str] = frozenset()
    abandoned: list[tuple[Node, int]] = field(default_factory=list)
    groups: set[str] = field(default_factory=set)
    internal_topics: set[str] = field(default_factory=set)
    jobs: dict[str, int] = field(
        default_factory=dict
    )  # the rekey jobs that run: their revisions, by the pod's uid
    checks: int = 0  # how often Spark has checked a view
    job_problem: str | None = None  # why no host runs a rekey job
    may_delete_topics: bool = True
    deleted_topics: set[str] = field(default_factory=set)
    _template_names: dict[str, str] = field(default_factory=dict)  # by the StatefulSet's resourceVersion

    def __post_init__(self) -> None:
        self.api = Api(lambda: self.now)

    # --- time

    def pass_time(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now = min(until, self.now + 1.0)
            self.step()

    def step(self) -> None:
        self._collect_garbage()
        for stateful_set in self.api.of("StatefulSet"):
            if self._happens(0.9):
                self._make_pods(stateful_set)
        for pod in list(self.api.of("Pod")):
            self._schedule(pod)
            self._run(pod)
        for node in list(self.nodes.values()):
            if self.kafka_is_there and self._is_up(node.host):
                self._use_internal_topic(node.placement.application_id, node.is_rekeyed)
                if node.is_rekeyed and node.revision not in self.jobs.values():
                    continue  # nothing is written to its topic
                node.hydrate(self.speed * self.random.random())
                self.groups.add(node.placement.application_id)
        for number in self.jobs.values() if self.kafka_is_there else ():
            self._use_internal_topic(self.application_id(number), is_rekeyed=True)
        self._gossip()
        self._probe_readiness()
        if self._happens(0.8):
            self.endpoints = self._endpoints_now()

    def host_views(self) -> dict[str, Host]:
        return {name: Host(self._seems_up(host), host.up, host.zone) for name, host in self.hosts.items()}

    def node_updates(self, node: Node, placement: Any) -> None:
        self.abandoned += [(node, partition) for partition in node.follow(placement)]

    def lose_host(self, name: str) -> None:
        self.hosts[name].up, self.hosts[name].down_since = False, self.now
        for disk in self.disks.values():
            if disk.host == name and disk.lost_at is None:
                disk.lost_at = self.now

    def recover_host(self, name: str) -> None:
        self.hosts[name].up = True
        for disk in self.disks.values():
            if disk.host == name:
                disk.lost_at = None

    def kill(self, key: NodeKey) -> None:
        """Kill a process; its kubelet or the pod's parent process restarts it."""
        self.nodes.pop(key, None)

    def disks_of(self, uid: str) -> list[Disk]:
        """Return what the nodes of a pod have on its volume."""
        return [disk for (of, _), disk in self.disks.items() if of == uid]

    def application_id(self, number: int) -> str:
        return names.application_id("default", "users", number, "the-resource")

    def _use_internal_topic(self, application_id: str, is_rekeyed: bool) -> None:
        """Create the internal topic, as a broker does for its consumers and producers."""
        if is_rekeyed:
            self.internal_topics.add(names.internal_topic(application_id))

    # --- controllers

    def _collect_garbage(self) -> None:
        self.api.collect_garbage()
        claims = {claim["metadata"]["uid"] for claim in self.api.of("PersistentVolumeClaim")}
        pods = {pod["metadata"]["uid"] for pod in self.api.of("Pod")}
        self.nodes = {key: node for key, node in self.nodes.items() if key[0] in pods}
        self.disks = {key: disk for key, disk in self.disks.items() if key[0] in claims | pods}
        self.jobs = {uid: number for uid, number in self.jobs.items() if uid in pods}

    def _make_pods(self, stateful_set: LiveRevision) -> None:
        meta, spec = stateful_set["metadata"], stateful_set["spec"]
        template = self._template_name(stateful_set)
        status = {"observedGeneration": meta["generation"], "updateRevision": template}
        if stateful_set.get("status") != status:
            stateful_set["status"] = status
            self.api.touch(stateful_set)
        for ordinal in range(spec["replicas"]):
            self._make_pod(stateful_set, ordinal, template)
        for pod in self.api.of("Pod"):
            name, _, ordinal = pod["metadata"]["name"].rpartition("-")
            if name == meta["name"] and (
                int(ordinal) >= spec["replicas"] or _is_replaced(spec, pod, template)
            ):
                self.api.delete(Ref("Pod", pod["metadata"]["name"]))

    def _template_name(self, stateful_set: LiveRevision) -> str:
        version = stateful_set["metadata"]["resourceVersion"]
        if version not in self._template_names:
            self._template_names[version] = template_name(stateful_set["spec"]["template"])
        return self._template_names[version]

    def _make_pod(self, stateful_set: LiveRevision, ordinal: int, template: str) -> None:
        meta, spec = stateful_set["metadata"], stateful_set["spec"]
        name = f"{meta['name']}-{ordinal}"
        claim = self.api.get("PersistentVolumeClaim", f"data-{name}")
        if "volumeClaimTemplates" in spec:
            if claim is None:
                self._make_claim(stateful_set, f"data-{name}")
            elif "deletionTimestamp" in claim["metadata"]:
                return
        if self.api.get("Pod", name) is not None:
            return
        labels = {**spec["template"]["metadata"]["labels"], "controller-revision-hash": template}
        owner = {"kind": "StatefulSet", "uid": meta["uid"], "controller": True}
        self.api.create(
            {
                "kind": "Pod",
                "metadata": {"name": name, "labels": labels, "ownerReferences": [owner]},
                "spec": {"template": spec["template"]},
                "status": {"conditions": []},
            }
        )

    def _make_claim(self, stateful_set: LiveRevision, name: str) -> None:
        template = stateful_set["spec"]["volumeClaimTemplates"][0]
        labels = dict(template["metadata"]["labels"])
        claim = {"kind": "PersistentVolumeClaim", "metadata": {"name": name, "labels": labels}}
        self.api.create({**claim, "spec": json.loads(json.dumps(template["spec"]))})

    def _schedule(self, pod: LiveRevision) -> None:
        if pod["spec"].get("nodeName") or "deletionTimestamp" in pod["metadata"] or not self._happens(0.7):
            return
        claim = self.api.get("PersistentVolumeClaim", f"data-{pod['metadata']['name']}")
        bound = claim["metadata"]["labels"].get("host") if claim else None
        up = [name for name, host in self.hosts.items() if self._seems_up(host)]
        if self.job_problem is not None and rekey_revision(pod) is not None:
            self._set_condition(pod, "PodScheduled", "False", self.job_problem)
            return
        fit = [bound] if bound in up else [] if bound else up
        if not fit:
            self._set_condition(pod, "PodScheduled", "False", f"no node fits: volume node affinity ({bound})")
            return
        used = [p["spec"].get("nodeName") for p in self.api.of("Pod")]
        host = min(fit, key=lambda name: (used.count(name), self.random.random()))
        pod["spec"]["nodeName"] = host
        self._set_condition(pod, "PodScheduled", "True", "")
        if claim:
            claim["metadata"]["labels"]["host"] = host
            claim["status"] = {"phase": "Bound"}
            self.api.touch(claim)

    def _run(self, pod: LiveRevision) -> None:
        meta, host = pod["metadata"], pod["spec"].get("nodeName")
        uid = meta["uid"]
        if "deletionTimestamp" in meta:
            if host is None or (self._is_up(host) and self._happens(0.3)):
                self._stop(uid)
                self.api.remove(Ref("Pod", meta["name"]))
            return
        if host is None:
            return
        if not self._is_up(host):
            self._stop(uid)
            if self.now - self.hosts[host].down_since > TAINT_SECONDS:
                self.api.delete(Ref("Pod", meta["name"]))
            return
        if (number := rekey_revision(pod)) is not None:
            self._run_job(pod, number)
            return
        if is_executor(pod):
            return
        ports = ports_of(pod)
        for worker, port in enumerate(ports):
            if (uid, port) not in self.nodes and self._happens(0.4):
                self._start(pod, host, worker, ports)

    def _run_job(self, pod: LiveRevision, number: int) -> None:
        name = names.child("users", number)
        config_map, uid = self.api.get("ConfigMap", name), pod["metadata"]["uid"]
        if uid in self.jobs or config_map is None or self.api.get("Secret", name) is None:
            return
        sql = spec_of(config_map).get("transform", {}).get("sql")
        checked = "initContainerStatuses" in pod["status"] and sql != REFUSED
        if sql == REFUSED:
            end = {
                "exitCode": 2,
                "reason": "Error",
                "message": refused(IngestFailure("TransformRefused", SENTENCE)),
            }
            waits = {"waiting": {"reason": "CrashLoopBackOff"}}
            self._set_container(pod, "check", waits, {"terminated": end})
        elif not checked and self._happens(0.2):
            self.checks += key_format_of(config_map) is None
            end = {"exitCode": 0, "reason": "Completed", "message": accepted("string")}
            self._set_container(pod, "check", {"terminated": end}, {})
        elif checked and self._happens(0.4):
            self._set_container(pod, "rekey", {"running": {}}, {})
            self.jobs[uid] = number

    def _set_container(
        self, pod: LiveRevision, name: str, state: dict[str, Any], last: dict[str, Any]
    ) -> None:
        kind = "initContainerStatuses" if name == "check" else "containerStatuses"
        statuses = [{"name": name, "state": state, "lastState": last}]
        if pod["status"].get(kind) != statuses:
            pod["status"][kind] = statuses
            self.api.touch(pod)

    def _stop(self, uid: str) -> None:
        self.jobs.pop(uid, None)
        self.nodes = {key: node for key, node in self.nodes.items() if key[0] != uid}

    def _start(self, pod: LiveRevision, host: str, worker: int, ports: list[int]) -> None:
        revision_name, _, index = pod["metadata"]["name"].rpartition("-")
        config_map = self.api.get("ConfigMap", revision_name)
        claim = self.api.get("PersistentVolumeClaim", f"data-{pod['metadata']['name']}")
        ephemeral = "volumes" in pod["spec"]["template"]["spec"] and any(
            volume["name"] == "data" for volume in pod["spec"]["template"]["spec"]["volumes"]
        )
        if config_map is None or self.api.get("Secret", revision_name) is None or not (claim or ephemeral):
            return
        if is_rekeyed(spec_of(config_map)) and key_format_of(config_map) is None:
            return  # the kubelet waits for a variable's key in the ConfigMap
        uid = pod["metadata"]["uid"] if claim is None else claim["metadata"]["uid"]
        disk = self.disks.setdefault((uid, ports[worker]), Disk(uid, host, len(ports)))
        assert disk.workers == len(ports), f"{pod['metadata']['name']} divides its volume anew"
        number = names.revision_number(revision_name.rpartition("-")[2]) or 0
        try:
            node = Node.start(
                pod["metadata"]["name"],
                pod["metadata"]["uid"],
                number,
                int(index) * len(ports) + worker,
                host,
                disk,
                config_map,
                self.now,
                ports[worker],
            )
        except (KeyError, ValueError, TypeError, AttributeError):
            return  # the process crashes and restarts
        self.nodes[node.key] = node

    def _gossip(self) -> None:
        """Let a node fetch a later placement from its peers."""
        for node in self.nodes.values():
            peers = [n for n in self.nodes.values() if n.revision == node.revision and n.answers]
            newest = max(peers, key=lambda peer: peer.placement.epoch, default=node)
            if self._happens(0.3):
                self.node_updates(node, newest.placement)

    def _probe_readiness(self) -> None:
        for pod in self.api.of("Pod"):
            nodes = [self.nodes.get((pod["metadata"]["uid"], port)) for port in ports_of(pod)]
            host = self.hosts.get(pod["spec"].get("nodeName", ""))
            if host is not None and not host.up:
                if not self._seems_up(host):
                    self._set_condition(pod, "Ready", "False", "its host does not answer")
            elif is_executor(pod):
                self._set_condition(pod, "Ready", "True" if host is not None else "False", "")
            elif rekey_revision(pod) is not None:
                runs = pod["metadata"]["uid"] in self.jobs
                self._set_condition(pod, "Ready", "True" if runs else "False", "")
            elif self._happens(0.7):
                self._set_condition(
                    pod, "Ready", "True" if all(n and n.ready for n in nodes) else "False", ""
                )

    def _endpoints_now(self) -> frozenset[str]:
        service = self.api.get("Service", "users")
        if service is None or service_of(service) is None:
            return frozenset()
        selector = service["spec"]["selector"].items()
        return frozenset(
            pod["metadata"]["name"]
            for pod in self.api.of("Pod")
            if selector <= pod["metadata"]["labels"].items() and is_ready(pod)
        )

    def _set_condition(self, pod: LiveRevision, kind: str, status: str, message: str) -> None:
        there = condition(pod, kind)
        if there.get("status") == status and there.get("message") == message:
            return
        since = there["lastTransitionTime"] if there.get("status") == status else text_of(self.now)
        others = [c for c in pod["status"]["conditions"] if c["type"] != kind]
        new = {"type": kind, "status": status, "message": message, "lastTransitionTime": since}
        pod["status"]["conditions"] = [*others, new]
        self.api.touch(pod)

    def _is_up(self, host: str) -> bool:
        return host in self.hosts and self.hosts[host].up

    def _seems_up(self, host: SimulatedHost) -> bool:
        return host.up or self.now - host.down_since < HOST_SILENT_SECONDS

    def _happens(self, chance: float) -> bool:
        return self.random.random() < chance


def template_name(template: Any) -> str:
    text = json.dumps(template, sort_keys=True)
    return f"t{hashlib.sha256(text.encode()).hexdigest()[:10]}"


def rekey_revision(pod: Manifest) -> int | None:
    """Return the revision whose rekey job the pod runs, if it runs one."""
    return names.revision_of_rekey_job("users", pod["metadata"]["name"].rpartition("-")[0])


def is_executor(pod: Manifest) -> bool:
    """Return whether the pod runs an executor of a rekey job."""
    return names.revision_of_executors("users", pod["metadata"]["name"].rpartition("-")[0]) is not None


def spec_of(config_map: LiveRevision) -> dict[str, Any]:
    """Return a revision's spec, as its processes find it; empty if it cannot be read."""
    try:
        spec = json.loads(config_map["data"]["spec.json"])
    except (KeyError, TypeError, ValueError):
        return {}
    return spec if isinstance(spec, dict) else {}


def key_format_of(config_map: LiveRevision) -> str | None:
    """Return the format of group keys that a ConfigMap gives to processes."""
    found = config_map.get("data", {}).get("group-key-format")
    return None if found is None else str(found)


def _is_replaced(stateful_set: LiveRevision, pod: LiveRevision, template: str) -> bool:
    """Return whether the StatefulSet's controller itself replaces the pod, after a change of the template."""
    outdated = pod["metadata"]["labels"].get("controller-revision-hash") != template
    return bool(stateful_set["updateStrategy"]["type"] == "RollingUpdate" and outdated)


def ports_of(pod: LiveRevision) -> list[int]:
    """Return the ports of a pod's nodes, as its processes find them in their environment."""
    env = pod["spec"]["template"]["spec"]["containers"][0].get("env", [])
    values = {variable["name"]: variable.get("value") for variable in env}
    return [int(port) for port in values.get("QT_WORKER_PORTS", "8080").split(",")]


def is_ready(pod: LiveRevision) -> bool:
    return condition(pod, "Ready").get("status") == "True" and "deletionTimestamp" not in pod["metadata"]


def ended_at(pod: LiveRevision) -> float | None:
    return seconds_of(pod["metadata"].get("deletionTimestamp"))
