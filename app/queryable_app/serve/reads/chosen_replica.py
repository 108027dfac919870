"""Hold a replica of this node that was chosen for a read, until the read is over.

Strategy: a read over several partitions chooses its replicas first and reads their rows later, perhaps many seconds later and in
several steps. A replica that starts over meanwhile, because its store was emptied or replaced, lacks rows that it had when it
was chosen. So each step takes the store from here, and the read starts over with other replicas. One that has left the node and
come back has its rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from queryable_app.errors import Failure
from queryable_app.policy.freshness import absent
from queryable_app.serve.store.replica import Replica
from queryable_app.serve.store.store import Store


@dataclass(frozen=True, slots=True)
class ChosenReplica:
    """Answer for a replica as long as it has the rows that it had when it was chosen."""

    replica: Replica
    rows_since: object

    @staticmethod
    def of(replica: Replica) -> ChosenReplica:
        return ChosenReplica(replica, replica.rows_since)

    @property
    def partition(self) -> int:
        return self.replica.partition

    @property
    def store(self) -> Store:
        """Return the open store. Raises Failure if there is none, or if the replica has started over."""
        if self.replica.rows_since is not self.rows_since:
            raise started_over(self.replica)
        return self.replica.store


def started_over(replica: Replica) -> Failure:
    return absent(replica, "on this node has started over during the read")
