"""Report the rekey job's state to the nodes of the view, and learn how far their replicas are in the source topic."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx

from queryable_app.aggregates.clock import SourceClock
from queryable_app.contract import NODE_HEADER, REKEY_PATH, NodeSettings
from queryable_app.placement.assignment import Placement
from queryable_app.platform.certificates import CertificateError, client_context, read_ca
from queryable_app.platform.mounted_files import read_token
from queryable_app.policy.source_positions import SourceStart

_REQUEST_SECONDS: Final = 2.0


class ReplicaSources(NamedTuple):
    """Where a run must begin for a replica, the runs that it refused last, and the id of its source topic, if it has rows."""

    partition: int
    starts: tuple[SourceStart, ...]
    refused: frozenset[int]
    source_id: str


class RekeyNodes:
    """Call the nodes of the newest placement in the placement file. An unreachable node is left out."""

    def __init__(self, settings: NodeSettings) -> None:
        self._placement_path = Path(settings.placement_path)
        self._headers = {NODE_HEADER: read_token(settings)}
        self._tls_dir = settings.node_tls_dir or settings.tls_dir
        self._trusted = b""
        self._extensions = {"sni_hostname": settings.node_tls_name} if settings.node_tls_name else {}
        self._http = self._new_client()
        self.source_ids: set[str] = set()
        """Kafka's ids of the source topic that the rows of the nodes are of, by the last report."""

    def report(
        self, state: str, detail: str, run: int, source_partitions: int = 0, source_id: str = ""
    ) -> Sequence[ReplicaSources]:
        """Report the state, and return the replicas of all nodes that answer. 0 partitions, no id: they are not known. A node
        fails replicas with rows of a source topic with another id."""
        body = {"state": state, "detail": detail, "run": run, "sourcePartitions": source_partitions}
        body["sourceId"] = source_id
        self.source_ids = set()
        placement = Placement.from_json(self._placement_path.read_text())
        replicas: list[ReplicaSources] = []
        self._follow_ca()
        for address in placement.addresses:
            try:
                answer = self._http.put(f"{address}{REKEY_PATH}", json=body, extensions=self._extensions)
                answered = answer.raise_for_status().json()
                replicas += [replica_sources(each) for each in answered["replicas"]]
                self.source_ids |= set(answered.get("sourceIds", ()))
            except (httpx.HTTPError, ValueError, KeyError, TypeError):
                continue
        self.source_ids |= {each.source_id for each in replicas} - {""}  # nodes of an earlier version
        return replicas

    def _new_client(self) -> httpx.Client:
        verify: ssl.SSLContext | bool = client_context(self._trusted) if self._tls_dir else True
        return httpx.Client(timeout=_REQUEST_SECONDS, trust_env=False, headers=self._headers, verify=verify)

    def _follow_ca(self) -> None:
        """Trust the CA that is mounted now. One that cannot be read leaves the client as it is."""
        if not self._tls_dir:
            return
        with suppress(CertificateError):
            trusted = read_ca(Path(self._tls_dir))
            if trusted != self._trusted:
                before, self._trusted = self._http, trusted
                self._http = self._new_client()
                before.close()


def replica_sources(raw: Any) -> ReplicaSources:
    """Parse what a node answers of one replica."""
    # Nodes of an earlier version know no starts, and no view with windows.
    starts = raw.get("starts") or [(0, *SourceClock())] * len(raw["sources"])
    return ReplicaSources(
        int(raw["partition"]),
        tuple(
            [
                SourceStart(int(offset), int(row), SourceClock(*map(int, clock)))
                for offset, (row, *clock) in zip(raw["sources"], starts, strict=True)
            ]
        ),
        frozenset(int(run) for run in raw["refused"]),
        str(raw.get("sourceId", "")),
    )
