"""Render this node's answer to heartbeats, once for all nodes that ask at about the same time."""

from __future__ import annotations

import asyncio
from typing import Final

from queryable_app.platform.clock import monotonic_ms
from queryable_app.policy.freshness import lag_ms, next_offset
from queryable_app.policy.routing import ReportedReplica
from queryable_app.serve.base.peer_frames import encode_heartbeat
from queryable_app.serve.store.replicas import Replicas

_SHARED_SECONDS: Final = 0.02


class OwnHeartbeat:
    """The answer of one node."""

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas
        self._encoded = (-1.0, b"")

    def body(self, draining: bool) -> bytes:
        encoded_at, body = self._encoded
        now = asyncio.get_running_loop().time()
        if now - encoded_at > _SHARED_SECONDS:
            now_ms = monotonic_ms()
            replicas = {
                partition: ReportedReplica(
                    next_offset(replica),
                    lag_ms(replica, now_ms),
                    replica.complete and replica.damaged is None,
                )
                for partition, replica in self._replicas.by_partition.items()
            }
            body = encode_heartbeat(
                self._replicas.placement.epoch, self._replicas.mismatches, replicas, draining
            )
            self._encoded = (now, body)
        return body
