"""Find replicas on other nodes for the partitions that this node cannot answer for."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Final

from queryable_app.errors import Failure
from queryable_app.policy.attempts import Attempts, SendTo, Wait, no_other_replica_failure
from queryable_app.policy.freshness import ReadOptions
from queryable_app.serve.peers.client import PeerTimeout, PeerUnavailable
from queryable_app.serve.reads import peer_reads
from queryable_app.serve.reads.peer_reads import CoverAnswer
from queryable_app.serve.reads.point import Reads
from queryable_app.serve.reads.replica_progress import ReplicaProgress

_NO_ANSWER: Final = CoverAnswer({}, {})


class RemoteSearch:
    """Search the other nodes for replicas that may answer.

    Each partition tries one node after another, as its `Attempts` decide. Partitions that try the same node at the same
    moment share one request.
    """

    def __init__(
        self,
        reads: Reads,
        refusals: dict[int, Failure],
        options: ReadOptions,
        deadline: float,
        failed_nodes: Collection[int],
    ) -> None:
        self.refusals = refusals
        """Why no replica covers a partition, by partition."""
        self.covered: dict[int, dict[int, ReplicaProgress]] = {}
        """Ordinal → the partitions that the node covers, and the progress of their replicas."""
        self._peers = reads.node.peers
        self._partitioner = reads.replicas.partitioner
        self._options = options
        self._deadline = deadline
        self._failed_nodes = failed_nodes
        self._attempts: dict[int, Attempts] = {}  # by partition
        self._running: dict[asyncio.Task[CoverAnswer], tuple[int, list[int]]] = {}

    async def run(self) -> None:
        """Send requests until every partition is covered or has no node left to try."""
        for partition in self.refusals:
            attempts = self._peers.attempts(partition, self._deadline, self._options, self._failed_nodes)
            if attempts is not None:
                self._attempts[partition] = attempts
        time = asyncio.get_running_loop().time
        try:
            while (wait_until := self._advance(time())) is not None:
                done, _ = await asyncio.wait(
                    self._running, timeout=wait_until - time(), return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    self._take_answer(task)
        finally:
            for task in self._running:
                task.cancel()

    def _advance(self, now: float) -> float | None:
        """Send the requests that are due, and return when to look again; None if no partition waits any more."""
        due: dict[int, list[int]] = {}
        wait_until: float | None = None
        for partition in self.refusals.keys() & self._attempts.keys():
            while isinstance(step := self._attempts[partition].step(now), SendTo):
                due.setdefault(step.ordinal, []).append(partition)
            if isinstance(step, Wait):
                wait_until = step.until if wait_until is None else min(wait_until, step.until)
            else:
                del self._attempts[partition]
                refusal = self.refusals[partition]
                self.refusals[partition] = no_other_replica_failure(refusal, step.timed_out)
        for ordinal, partitions in due.items():
            cover = peer_reads.cover(self._peers, ordinal, partitions, self._options, self._deadline)
            self._running[asyncio.create_task(cover)] = ordinal, partitions
        return wait_until

    def _take_answer(self, task: asyncio.Task[CoverAnswer]) -> None:
        """Note which partitions the node covers, except those that another one has covered meanwhile."""
        ordinal, partitions = self._running.pop(task)
        timed_out = False
        try:
            answer = task.result()
        except PeerUnavailable as unavailable:
            answer, timed_out = _NO_ANSWER, isinstance(unavailable, PeerTimeout)
        self._partitioner.note_mismatched(answer.mismatched)
        for partition in self.refusals.keys() & partitions:
            progress = answer.progress.get(partition)
            if progress is not None:
                self.covered.setdefault(ordinal, {})[partition] = progress
                del self.refusals[partition]
            else:
                self._attempts[partition].failed(ordinal, timed_out)
                self.refusals[partition] = answer.refused.get(partition, self.refusals[partition])
