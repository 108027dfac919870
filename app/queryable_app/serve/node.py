"""Everything a running node has, in one place.

Strategy: `Node.open` needs nothing but a directory: it opens the stores and can answer reads from them. `start` begins
what talks to others, ingest and Kafka, and returns at once whether they are there or not; `stop` ends it all and closes
the stores cleanly.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from queryable_app.contract import PLACEMENT_FILE, NodeSettings
from queryable_app.disk_format import Identity
from queryable_app.log import event
from queryable_app.placement import Placement
from queryable_app.serde import key_codec
from queryable_app.serve.copies import Copies, Copy, Role
from queryable_app.serve.store import SharedMemory, Store, StoreError
from queryable_app.topic_spec import TopicSpec, parse_spec_json


@dataclass(slots=True)
class IngestStatus:
    """What ingest last said of itself."""

    state: str = "absent"  # no ingest is connected
    mode: str = ""
    detail: str = ""
    pid: int = 0
    starts: int = 0
    since_ms: int = 0  # when it came into this state


class Node:
    """Build it with `Node.open`."""

    def __init__(self, settings: NodeSettings, spec: TopicSpec, copies: Copies, memory: SharedMemory) -> None:
        self.settings = settings
        self.spec = spec
        self.codec = key_codec(spec.key_format)
        self.copies = copies
        self.memory = memory
        self.ingest_status = IngestStatus(since_ms=time.time_ns() // 1_000_000)
        self.started_at = time.time()
        self.last_read_at = -1.0
        """Monotonic time of the last answered read, kept by whoever answers. Ingest then leaves room for reads."""
        self.peers: Any = None

    @staticmethod
    def open(settings: NodeSettings) -> Node:
        """Open the stores of the partitions that the placement gives this node. One that cannot be opened is failed; the
        others serve."""
        spec = parse_spec_json(settings.spec)
        placement = load_placement(settings)
        held = placement.held_by(settings.ordinal)
        memory = SharedMemory(settings.block_cache_mb, settings.write_buffer_mb, len(held))
        copies = [_open_copy(settings, spec, placement, partition, memory) for partition in held]
        return Node(settings, spec, Copies(placement, spec.partitioner, copies), memory)

    @property
    def placement(self) -> Placement:
        return self.copies.placement

    async def start(self) -> None:
        """Begin to listen to ingest and to ask Kafka. Neither needs to be there."""

    async def stop(self) -> None:
        """End what `start` began, and close the stores."""
        self.copies.close()


def load_placement(settings: NodeSettings) -> Placement:
    """The newer of the one on the node's disk and the one it was started with."""
    first = Placement.from_json(Path(settings.placement_path).read_text())
    kept = Path(settings.data_dir, PLACEMENT_FILE)
    if kept.exists():
        latest = Placement.from_json(kept.read_text())
        if latest.application_id == first.application_id and latest.epoch > first.epoch:
            return latest
    return first


def _open_copy(
    settings: NodeSettings, spec: TopicSpec, placement: Placement, partition: int, memory: SharedMemory
) -> Copy:
    role: Role = "hydrating"
    if settings.ordinal in placement.serving[partition]:
        role = "active" if placement.serving[partition][0] == settings.ordinal else "standby"
    identity = Identity(settings.application_id, spec.topic, partition)
    path = Path(settings.data_dir, settings.application_id, f"p{partition:04d}")
    try:
        return Copy(partition, role, Store.open(path, identity, memory))
    except (StoreError, OSError) as error:
        event("failed", partition=partition, reason=str(error))
        return Copy(partition, role, None, failed=str(error))
