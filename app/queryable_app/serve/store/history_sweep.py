"""Remove versions that a view does not retain.

Strategy: first the floor rises, and then versions below it are removed, in later writes. A version is below the floor if a newer
one of its key is. So the state at the floor, and at every later moment, stays whole. A bound on the number of versions of a key
has no floor; there the oldest version that stays is flagged, and a read of an older one is refused.

Replicas sweep at different times. Each answers by its own floor.
"""

from __future__ import annotations

import time
from contextlib import closing
from typing import Final

from queryable_app.serve.store.store import Store
from queryable_app.wire import version_keys as keys

_MARKS_AT_ONCE: Final = 512


def raise_floor(store: Store, now_ms: int) -> None:
    """Raise the floor to the last position that the retention has left behind, and remove the marks up to it."""
    history = store.history
    assert history is not None
    state, horizon_ms = history.state, now_ms - history.spec.retention_ms
    reached: tuple[int, int] | None = None
    passed: list[tuple[bytes, bytes | None]] = []
    with closing(store.versions(keys.MARKS_FIRST, keys.FIRST, False)) as marks:
        for key, mark in marks:
            position, clock_ms = keys.decode_mark(key, mark)
            if clock_ms > horizon_ms or len(passed) == _MARKS_AT_ONCE:
                break
            reached = position, clock_ms
            passed.append((key, None))
    if 0 <= state.clock_ms <= horizon_ms and store.state.position > 0:  # nothing has arrived for long
        reached = store.state.position, state.clock_ms
    if reached is None or reached[0] <= state.floor_position:
        return
    position, clock_ms = reached
    raised = state._replace(floor_position=position, floor_ms=max(state.floor_ms, clock_ms))
    store.write_versions(passed, raised)


class VersionWalk:
    """Walk all versions of a store once, in short steps."""

    def __init__(self, scattered: bool) -> None:
        """`scattered` says that a key may be in several partitions. Then its last deletion must stay, since it hides older
        records in another partition."""
        self._scattered = scattered
        self._next: bytes = keys.FIRST
        self._group = b""
        self._kept = 0
        self._below = False  # a version of the group counts at the floor already
        self._last = (b"", b"")  # the last version of the group that stays

    def step(self, store: Store, until: float) -> bool:
        """Remove versions until a moment of the monotonic clock. Return whether there may be more."""
        history = store.history
        assert history is not None
        floor, versions_max = history.state.floor_position, history.spec.versions
        changes: dict[bytes, bytes | None] = {}
        more = False
        with closing(store.versions(self._next, keys.END, False, caches=False)) as versions:
            for key, version in versions:
                self._look(key, version, floor, versions_max, changes)
                if time.monotonic() > until:
                    self._next = key + b"\0"
                    more = True
                    break
        if changes:
            store.write_versions(changes.items(), history.state)
        return more

    def _look(
        self,
        key: bytes,
        version: bytes,
        floor: int,
        versions_max: int | None,
        changes: dict[bytes, bytes | None],
    ) -> None:
        group = keys.group_in(key)
        if group != self._group:
            self._group, self._kept, self._below = group, 0, False
        if self._below:
            changes[key] = None
            return
        self._below = keys.offset_in(key) < floor
        if versions_max is not None and self._kept >= versions_max:
            changes[key] = None
            last_key, last = self._last
            if not keys.is_truncated(last):
                flagged = keys.encode_version(keys.clock_of(last), keys.row_of(last), truncated=True)
                changes[last_key] = flagged
                self._last = last_key, flagged
            return
        if (
            self._below
            and keys.is_tombstone(version)
            and not self._scattered
            and not keys.is_truncated(version)
        ):
            changes[key] = None  # no version at all says the same
            return
        self._kept += 1
        self._last = key, version
