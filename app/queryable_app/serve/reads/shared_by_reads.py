"""Keep what all plain reads of a replica share, for a few milliseconds: whether it may answer, and the header lines that say how
fresh it is."""

from __future__ import annotations

from typing import Final, NamedTuple

from queryable_app.errors import Failure
from queryable_app.policy.freshness import ReadOptions, freshness_failure
from queryable_app.serve.reads.point_answers import PointAnswers
from queryable_app.serve.store.replica import Replica
from queryable_app.serve.store.store import Store
from queryable_app.wire.disk_format import ReplicaState

_SHARED_MS: Final = 5


class Shared(NamedTuple):
    """What the plain reads of a replica share for `_SHARED_MS`, or until the replica's state changes.

    The lag is that of the last moment, so it is never too small.
    """

    until_ms: int
    replica: Replica
    store: Store | None  # None: it may not answer, or is not open
    state: ReplicaState
    refusal: Failure | None
    headers: bytes
    begin: bytes  # of the answers with a live row; `FOUND_END` completes one


class SharedByReads:
    """Hold it for each replica of a node."""

    def __init__(self, answers: PointAnswers) -> None:
        self._answers = answers
        self._defaults = ReadOptions()
        self._server_lines = b""
        self._by_partition: dict[int, Shared] = {}

    def take_defaults(self, defaults: ReadOptions) -> None:
        """Decide with these options from now on whether a replica may answer a plain read."""
        self._defaults = defaults
        self._by_partition.clear()

    def set_server_lines(self, lines: bytes) -> None:
        """Begin the header lines with those of the server, such as the date."""
        self._server_lines = lines
        self._by_partition.clear()

    def of(self, replica: Replica, now_ms: int) -> Shared:
        """Return what the reads of a replica share at a moment of `platform/clock.py`, which is now."""
        shared = self._by_partition.get(replica.partition)
        if (
            shared is None
            or shared.until_ms < now_ms
            or shared.replica is not replica
            or shared.state is not replica.state
            or (shared.store is not None and not replica.serves_from(shared.store))
        ):
            shared = self._by_partition[replica.partition] = self._renewed(replica, now_ms)
        return shared

    def _renewed(self, replica: Replica, now_ms: int) -> Shared:
        until_ms = now_ms + _SHARED_MS
        refusal = freshness_failure(replica, self._defaults, until_ms, None)
        store = replica.store if replica.opened and refusal is None else None
        headers = self._answers.lines_of_one(replica, until_ms)
        begin = self._answers.begin_of_found(replica.partition, self._server_lines, headers)
        return Shared(until_ms, replica, store, replica.state, refusal, headers, begin)
