"""Hold what a node keeps about one other node, and render the plain reads that it sends there."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final, Protocol

from queryable_app.policy.failure_detector import PeerHealth
from queryable_app.serve.peers.client import PeerClient
from queryable_app.serve.peers.heartbeats import Heartbeats
from queryable_app.serve.peers.pipeline import PlainRead, ReadPipeline

PLAIN_READ: Final = b"GET /v1/keys/"

# Few different header lines, so that they hit the other node's parsed-header cache.
_PLAIN_DEADLINE_STEP_MS: Final = 50


class FirstSend(PlainRead, Protocol):
    """A plain read that no node has got yet."""

    key: bytes
    """As it stands in the path."""
    credentials: bytes
    """The header line with the client's token, or nothing."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Another node, and the connections to it."""

    address: str
    health: PeerHealth
    heartbeats: Heartbeats
    client: PeerClient
    pipeline: ReadPipeline
    plain_lines: bytes  # of a plain read, between the key and the remaining milliseconds
    plain_tails: dict[int, bytes] = field(default_factory=dict)  # by the remaining milliseconds
    movable: dict[asyncio.Timeout, Collection[int]] = field(default_factory=dict)
    """Running requests that other nodes could serve, and the partitions that they read."""

    def plain_tail(self, seconds: float) -> bytes:
        """Return what stands behind the key in a plain read that has so much time left."""
        left_ms = int(seconds * 1000 + 0.5) // _PLAIN_DEADLINE_STEP_MS * _PLAIN_DEADLINE_STEP_MS
        tail = self.plain_tails.get(left_ms)
        if tail is None:
            tail = self.plain_tails[left_ms] = b"%b%d\r\n\r\n" % (self.plain_lines, left_ms or 1)
        return tail


def plain_request(key: bytes, tail: bytes, credentials: bytes) -> bytes:
    """Return a plain read. The client's token, if it has one, goes with it, and the other node checks it again."""
    if not credentials:
        return PLAIN_READ + key + tail
    return b"%b%b%b%b\r\n" % (PLAIN_READ, key, tail[:-2], credentials)
