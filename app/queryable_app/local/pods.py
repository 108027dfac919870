"""Run one pod: its settings, its two processes, and why its nodes are not ready."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import httpx

from queryable_app.contract import ENV_PREFIX, SERVE_ENV, NodeSettings, worker_settings
from queryable_app.local.data_directory import DataDirectory
from queryable_app.local.desired_scale import DesiredScale
from queryable_app.local.placement_controller import PLACEMENT_FILE
from queryable_app.local.secrets import NO_SECRETS, Secrets
from queryable_app.placement.assignment import DesiredPlacement, Placement, initial_placement
from queryable_app.platform.processes import Process, SupervisedProcess, free_ports, is_free
from queryable_app.wire.ingest_failures import IngestFailure, parse_failure

HOST: Final = "127.0.0.1"
_SPEC_FILE: Final = "spec.json"


class NodeFailed(Exception):
    """The ingest of a node has failed permanently."""

    def __init__(self, node: str, failure: IngestFailure) -> None:
        super().__init__(failure.message if failure.caused_by_spec else f"{node}: {failure.message}")
        self.failure = failure


class Pod:
    """Own the two processes of a pod, which start at once. With workers, `serve` is the parent of a process for each."""

    def __init__(self, settings: NodeSettings, data: DataDirectory) -> None:
        self.name = settings.name
        self.ordinal = settings.ordinal
        self.nodes = worker_settings(settings)
        self._front = settings.advertised_url
        self._environ = {**os.environ, **settings.to_env()}
        self._data = data
        self.ingest = self._supervised("ingest")  # first, since Spark takes longest to start
        self.serve = self._supervised("serve")

    @property
    def supervised(self) -> tuple[SupervisedProcess, SupervisedProcess]:
        return self.serve, self.ingest

    def log(self, role: str) -> Path:
        return self._data.log(f"{self.name}-{role}")

    def describe(self) -> list[dict[str, Any]]:
        """Return what `run.json` says about each node of the pod. `front` is the address that its workers share."""
        pids = {"serve": self.serve.process.pid, "ingest": self.ingest.process.pid}
        pod = {"pod": self.name, "front": self._front, "pids": pids}
        return [{"name": node.name, "url": node.advertised_url, **pod} for node in self.nodes]

    def not_ready(self, http: httpx.Client) -> str:
        """Return why a node is not hydrated and streaming yet, or an empty text. Raises NodeFailed if it never can be."""
        return ", ".join(why for node in self.nodes if (why := _not_ready(node, http)))

    def _supervised(self, role: str) -> SupervisedProcess:
        command = [sys.executable, "-m", f"queryable_app.{role}"]
        environ = {**SERVE_ENV, **self._environ} if role == "serve" else self._environ

        def start() -> Process:
            return Process(command, self.log(role), environ, [self._data.lock])

        return SupervisedProcess(f"{role} of {self.name}", start, start())


def _not_ready(node: NodeSettings, http: httpx.Client) -> str:
    try:
        status: Mapping[str, Any] = http.get(f"{node.advertised_url}/v1/status").raise_for_status().json()
    except (httpx.HTTPError, ValueError):
        return f"{node.name} does not answer"
    replicas, ingest = status["partitions"], status["ingest"]
    for replica in replicas:
        if replica["failed"]:
            return f"{node.name}: partition {replica['partition']} has failed: {replica['failed']}"
    if (failure := parse_failure(ingest["failure"])) is not None:
        raise NodeFailed(node.name, failure)
    if ingest["state"] != "streaming":
        state = "not started yet" if ingest["state"] == "absent" else ingest["state"]
        return f"Spark of {node.name} is {state} {ingest['detail']}".rstrip()
    if (job := status.get("rekey")) is not None and job["state"] != "streaming":
        return f"the rekey job is {job['state']} {job['detail']}".rstrip()
    if status["ready"]:
        return ""
    percent = 100 * sum(replica["progress"] for replica in replicas) / max(1, len(replicas))
    rate = sum(replica["recordsPerSecond"] for replica in replicas)
    return f"{node.name} {percent:.0f} % at {rate:,.0f} records/s"


def pod_settings(
    name: str,
    ordinal: int,
    spec: Mapping[str, Any],
    application_id: str,
    front: str,
    nodes: Sequence[str],
    data: DataDirectory,
    group_key_format: str = "",
    secrets: Secrets = NO_SECRETS,
) -> NodeSettings:
    """Write the spec's file, and return the settings of a pod: this machine's, `QT_` variables, and defaults.

    `front` is the pod's address, and `nodes` has those of its nodes: several workers, or the front address alone.
    """
    workers = [] if list(nodes) == [front] else nodes
    own = {
        "name": name,
        "ordinal": ordinal,
        "application_id": application_id,
        "spec_path": data.write(_SPEC_FILE, spec),
        "bootstrap_servers": spec["kafka"]["bootstrapServers"],
        "advertised_url": front,
        "data_dir": data.pod_data(ordinal),
        "run_dir": data.pod_sockets(ordinal),
        "placement_path": data.path / PLACEMENT_FILE,
        "http_host": HOST,
        "http_port": httpx.URL(front).port,
        "worker_ports": ",".join(str(httpx.URL(url).port) for url in workers),
        "internal_token_path": data.internal_token(),
        "group_key_format": group_key_format,
        **secrets.node_settings(),
    }
    variables = {ENV_PREFIX + field.upper(): str(value) for field, value in own.items()}
    return NodeSettings.from_env({**os.environ, **variables})


def new_address(port: int, ordinal: int, scheme: str = "http") -> str:
    """Return the address of one more pod: the next port after the others if it is free."""
    next_port = port + ordinal
    return f"{scheme}://{HOST}:{next_port if port and is_free(next_port, HOST) else free_ports(1)[0]}"


def node_addresses(fronts: Sequence[str], workers: int) -> list[str]:
    """Return the addresses of the nodes of these pods: free ports for workers, or the front addresses alone."""
    if workers == 1:
        return list(fronts)
    taken = {httpx.URL(front).port for front in fronts}
    ports = [port for port in free_ports(len(fronts) * workers + len(taken)) if port not in taken]
    scheme = httpx.URL(fronts[0]).scheme if fronts else "http"
    return [f"{scheme}://{HOST}:{port}" for port in ports[: len(fronts) * workers]]


def desired_placement(desired: DesiredScale, addresses: Sequence[str], workers: int) -> DesiredPlacement:
    """Return what the placement must become. The workers of a pod are one failure domain."""
    nodes = tuple(addresses[: desired.nodes * workers])
    domains = tuple(str(node // workers) for node in range(len(nodes))) if workers > 1 else ()
    return DesiredPlacement(nodes, desired.replicas, domains)


def start_placement(
    stored: Mapping[str, Any] | None,
    application_id: str,
    partitions: int,
    urls: Sequence[str],
    desired: DesiredScale,
    workers: int = 1,
) -> Placement:
    """Return the placement that a run starts with: the stored one of an earlier run, with the nodes' addresses in `urls`, or
    the initial one. If it differs from the stored one, its epoch is higher, so that nodes follow it.
    """
    goal = desired_placement(desired, urls, workers)
    first = initial_placement(application_id, partitions, goal.addresses, goal.replicas, goal.domains)
    if stored is None:
        return first
    before = Placement.from_json(json.dumps(stored))
    same_view = (before.application_id, before.partitions) == (application_id, partitions)
    after = replace(before, addresses=tuple(urls)) if same_view else first
    return replace(after, epoch=before.epoch + (replace(after, epoch=before.epoch) != before))
