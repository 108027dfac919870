"""Run one node: its settings, its two processes, and why it is not ready."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import httpx

from queryable_app.contract import ENV_PREFIX, NodeSettings
from queryable_app.local.data_directory import DataDirectory
from queryable_app.local.desired_scale import DesiredScale
from queryable_app.local.placement_controller import PLACEMENT_FILE
from queryable_app.local.processes import Process, SupervisedProcess, free_ports, is_free
from queryable_app.placement.assignment import Placement, initial_placement
from queryable_app.wire.ingest_failures import IngestFailure, parse_failure

HOST: Final = "127.0.0.1"
_SPEC_FILE: Final = "spec.json"


class NodeFailed(Exception):
    """The ingest of a node has failed permanently."""

    def __init__(self, node: str, failure: IngestFailure) -> None:
        super().__init__(failure.message if failure.caused_by_spec else f"{node}: {failure.message}")
        self.failure = failure


class Node:
    """Own the two processes of a node, which start at once."""

    def __init__(self, settings: NodeSettings, data: DataDirectory) -> None:
        self.name = settings.name
        self.ordinal = settings.ordinal
        self.url = settings.advertised_url
        self._environ = {**os.environ, **settings.to_env()}
        self._data = data
        self.serve = self._supervised("serve")
        self.ingest = self._supervised("ingest")

    @property
    def supervised(self) -> tuple[SupervisedProcess, SupervisedProcess]:
        return self.serve, self.ingest

    def log(self, role: str) -> Path:
        return self._data.log(f"{self.name}-{role}")

    def describe(self) -> dict[str, Any]:
        pids = {"serve": self.serve.process.pid, "ingest": self.ingest.process.pid}
        return {"name": self.name, "url": self.url, "pids": pids}

    def not_ready(self, http: httpx.Client) -> str:
        """Return why the node is not hydrated and streaming yet, or an empty text. Raises NodeFailed if it never can be."""
        try:
            status: Mapping[str, Any] = http.get(f"{self.url}/v1/status").raise_for_status().json()
        except (httpx.HTTPError, ValueError):
            return f"{self.name} does not answer"
        replicas, ingest = status["partitions"], status["ingest"]
        for replica in replicas:
            if replica["failed"]:
                return f"{self.name}: partition {replica['partition']} has failed: {replica['failed']}"
        if (failure := parse_failure(ingest["failure"])) is not None:
            raise NodeFailed(self.name, failure)
        if ingest["state"] != "streaming":
            state = "not started yet" if ingest["state"] == "absent" else ingest["state"]
            return f"Spark of {self.name} is {state} {ingest['detail']}".rstrip()
        if status["ready"]:
            return ""
        percent = 100 * sum(replica["progress"] for replica in replicas) / max(1, len(replicas))
        rate = sum(replica["recordsPerSecond"] for replica in replicas)
        return f"{self.name} {percent:.0f} % at {rate:,.0f} records/s"

    def _supervised(self, role: str) -> SupervisedProcess:
        command = [sys.executable, "-m", f"queryable_app.{role}"]

        def start() -> Process:
            return Process(command, self.log(role), self._environ, [self._data.lock])

        return SupervisedProcess(f"{role} of {self.name}", start, start())


def node_settings(
    name: str, ordinal: int, spec: Mapping[str, Any], placement: Placement, data: DataDirectory
) -> NodeSettings:
    """Write the spec's file, and return the settings of a node: this machine's, `QT_` variables, and defaults."""
    url = placement.addresses[ordinal]
    own = {
        "name": name,
        "ordinal": ordinal,
        "application_id": placement.application_id,
        "spec_path": data.write(_SPEC_FILE, spec),
        "bootstrap_servers": spec["kafka"]["bootstrapServers"],
        "advertised_url": url,
        "data_dir": data.node_data(ordinal),
        "run_dir": data.node_sockets(ordinal),
        "placement_path": data.path / PLACEMENT_FILE,
        "http_host": HOST,
        "http_port": httpx.URL(url).port,
        "internal_token_path": data.internal_token(),
    }
    variables = {ENV_PREFIX + field.upper(): str(value) for field, value in own.items()}
    return NodeSettings.from_env({**os.environ, **variables})


def new_address(port: int, ordinal: int) -> str:
    """Return the address of one more node: the next port after the others if it is free."""
    next_port = port + ordinal
    return f"http://{HOST}:{next_port if port and is_free(next_port, HOST) else free_ports(1)[0]}"


def start_placement(
    stored: Mapping[str, Any] | None,
    application_id: str,
    partitions: int,
    urls: Sequence[str],
    desired: DesiredScale,
) -> Placement:
    """Return the placement that a run starts with: the stored one of an earlier run, with the nodes' addresses in `urls`, or
    the initial one. If it differs from the stored one, its epoch is higher, so that nodes follow it.
    """
    first = initial_placement(application_id, partitions, urls[: desired.nodes], desired.replicas)
    if stored is None:
        return first
    before = Placement.from_json(json.dumps(stored))
    same_view = (before.application_id, before.partitions) == (application_id, partitions)
    after = replace(before, addresses=tuple(urls)) if same_view else first
    return replace(after, epoch=before.epoch + (replace(after, epoch=before.epoch) != before))
