"""Fold the changes of a replica into rows, as a client of the feed does."""

from __future__ import annotations

from dataclasses import dataclass, field

from queryable_app.serve.store.replica import Replica
from queryable_app.serve.store.replica_changes import read_changes
from queryable_app.wire.change_log import Mark
from queryable_app.wire.disk_format import TOMBSTONE


def live_rows(replica: Replica) -> dict[bytes, bytes]:
    """Return the rows of a replica, as they are stored."""
    return {key: stored for key, stored in replica.store.rows() if not stored[0] & TOMBSTONE}


@dataclass
class FoldedChanges:
    """The rows of a partition after the changes that were read, from whichever replica."""

    mark: Mark = field(default_factory=lambda: Mark(0))
    rows: dict[bytes, bytes] = field(default_factory=dict)

    def read(self, replica: Replica) -> None:
        """Read the next portion."""
        portion = read_changes(replica, self.mark)
        for key, _, stored in portion.rows:
            self.rows[key] = stored
            if stored[0] & TOMBSTONE:
                del self.rows[key]
        self.mark = portion.mark

    def read_to_end(self, replica: Replica) -> None:
        while self.mark != Mark(replica.position):
            self.read(replica)
