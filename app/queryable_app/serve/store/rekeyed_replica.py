"""Track a replica of an internal topic, whose progress is measured in the source topic."""

from __future__ import annotations

from queryable_app.policy.source_positions import SourcePositions
from queryable_app.serve.store.replica import Replica, Role
from queryable_app.serve.store.store import Store
from queryable_app.wire.disk_format import ReplicaState


class RekeyedReplica(Replica):
    """Hold a replica whose freshness speaks of source offsets. `position` is still that in the internal topic."""

    def __init__(
        self,
        partition: int,
        role: Role,
        store: Store | None,
        source_partitions: int,
        failed: str | None = None,
    ) -> None:
        super().__init__(partition, role, store, failed)
        self._nothing = SourcePositions.none(source_partitions)
        self._source_ends: tuple[int, ...] = ()

    @property
    def sources(self) -> SourcePositions:
        """Return the source positions. They are never changed, only replaced."""
        return (self._store.sources if self._store else None) or self._nothing

    @property
    def source_offsets(self) -> tuple[int, ...]:
        return self.sources.offsets

    @property
    def source_ends(self) -> tuple[int, ...]:
        return self._source_ends

    def note_source_ends(self, as_of_ms: int, ends: tuple[int, ...]) -> None:
        """Record that the source partitions ended at `ends` at `as_of_ms`, a moment of `platform/clock.py`."""
        if self._log_lost:
            return
        self._source_ends, self.end_offset = ends, sum(ends)
        self._note_end(as_of_ms, ends)

    def _reaches_end(self, state: ReplicaState, sources: SourcePositions | None) -> bool:
        offsets = (sources or self.sources).offsets
        ends = self._source_ends
        return bool(ends) and all([offset >= end for offset, end in zip(offsets, ends, strict=True)])

    def _forget_end_offset(self) -> None:
        self._source_ends = ()
        super()._forget_end_offset()


def new_replica(
    partition: int, role: Role, store: Store | None, source_partitions: int, failed: str | None = None
) -> Replica:
    """Return a replica: that of a rekeyed view if the view has source partitions."""
    if source_partitions:
        return RekeyedReplica(partition, role, store, source_partitions, failed)
    return Replica(partition, role, store, failed)
