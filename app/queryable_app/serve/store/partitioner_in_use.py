"""Decide which partitions may hold a key, from every partitioner mismatch that this node learns of.

Strategy: mismatches come from this node's replicas, from the heartbeats of its peers, and with the parts of a read that a peer
answers. A mismatch rules an algorithm out for the life of the revision. So the node keeps it on disk: the replica that
showed it may be rebuilt or placed elsewhere, and after a restart the peers may be unreachable. Everything else in the node
sees the result alone, `partitioning`.
"""

from __future__ import annotations

import json
from collections.abc import Set
from pathlib import Path

from queryable_app.platform.log import event
from queryable_app.serve.base.atomic_file import write_atomically
from queryable_app.wire.partitioners import (
    ALGORITHMS,
    MismatchCounts,
    Partitioning,
    algorithm_in_use,
    counts_by_algorithm,
    mismatched_algorithms,
    sum_of_mismatches,
)


class PartitionerInUse:
    """Keep the mismatched algorithms of a view, in memory and on disk, and the partitioning that follows from them."""

    def __init__(self, declared: str, partitions: int, path: Path) -> None:
        self.declared = declared
        self._path = path
        self.mismatched = self._read()
        """The algorithms that at least one record does not follow."""
        self._unwritten = False
        self._counts: dict[str, MismatchCounts] = {}  # by source
        self.partitioning = Partitioning(algorithm_in_use(declared, self.mismatched), partitions)
        """Where reads look for keys. A change replaces the value, so that a read can compare before and after."""

    def note_counts(self, source: str, counts: MismatchCounts) -> None:
        """Take the latest counts of a source: this node's replicas, or a peer."""
        self._counts[source] = counts
        self.note_mismatched(mismatched_algorithms(counts))

    def note_mismatched(self, algorithms: Set[str]) -> None:
        """Rule algorithms out, and log it if reads look elsewhere from now on."""
        mismatched = self.mismatched.union(algorithms).intersection(ALGORITHMS)
        if mismatched == self.mismatched and not self._unwritten:
            return
        self.mismatched = mismatched
        self._write()
        was, now = self.partitioning.algorithm, algorithm_in_use(self.declared, mismatched)
        if now == was:
            return
        self.partitioning = Partitioning(now, self.partitioning.partitions)
        counts = counts_by_algorithm(sum_of_mismatches(self._counts.values()))
        event(
            "partitioner",
            declared=self.declared,
            was=was,
            now=now,
            **{f"contradicting_{algorithm}": count for algorithm, count in counts.items()},
        )

    def _write(self) -> None:
        try:
            write_atomically(self._path, json.dumps(sorted(self.mismatched)))
            self._unwritten = False
        except OSError as error:  # a full disk: keep it in memory, and write it with the next mismatch
            self._unwritten = True
            event("failed", path=str(self._path), reason=str(error))

    def _read(self) -> frozenset[str]:
        try:
            return frozenset(json.loads(self._path.read_text())).intersection(ALGORITHMS)
        except FileNotFoundError:
            return frozenset()
        except (OSError, ValueError, TypeError):  # cut off by a crash: to scatter is slower, and always right
            return frozenset(ALGORITHMS)
