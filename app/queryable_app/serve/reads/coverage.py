"""Decide which replicas answer a read over several partitions, which partitions are missing, and what the answer says about it.

Strategy: the replicas here come first, then those of other nodes in the placement's order, until every partition has one or no
node is left. The answer never leaves a partition out in silence: either the whole read fails and names it, or the caller allows
a part, and the answer names it. With `any`, a replica that is still hydrating answers with what it has and is named as well.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

from queryable_app.errors import REASONS_TO_TRY_ELSEWHERE, Failure, Reason
from queryable_app.platform.clock import monotonic_ms
from queryable_app.policy.freshness import ReadOptions, absent
from queryable_app.policy.routing import not_hosted_here
from queryable_app.serve.reads.chosen_replica import ChosenReplica
from queryable_app.serve.reads.peer_reads import Chosen, Positions, ReplicasLost
from queryable_app.serve.reads.point import Reads
from queryable_app.serve.reads.remote_search import RemoteSearch
from queryable_app.serve.reads.replica_progress import ReplicaProgress, positions_of, progress_of
from queryable_app.serve.reads.scans import gather_or_cancel
from queryable_app.serve.store.replica import Replica

T = TypeVar("T")

_ATTEMPTS: Final = 3
_REASONS: Final = (*REASONS_TO_TRY_ELSEWHERE, Reason.DEADLINE_EXCEEDED)
_REPLY_RESERVE_SECONDS: Final = 0.01  # a peer whose time is over says so a little before the deadline here


@dataclass(frozen=True, slots=True)
class Coverage:
    """The replicas that answer a read, and what the answer says about them."""

    local: Mapping[int, ChosenReplica]
    remote: Mapping[int, Positions]
    """Ordinal → the partitions that the node answers, and the positions of their replicas."""
    missing: tuple[int, ...]
    """The partitions of which the answer may lack rows."""
    progress: tuple[ReplicaProgress, ...]
    """The replicas' positions when the search ended; the answer has all rows up to them, and may have later ones."""
    headers: bytes
    failed_nodes: frozenset[int]
    """Nodes that did not answer an earlier attempt of this read."""

    def may_retry_elsewhere(self, ordinal: int) -> bool:
        """Return whether the read may give up on a node early. It gives up on each node once: a second time, no other is left."""
        return ordinal not in self.failed_nodes

    def fields(self) -> bytes:
        """Return the end of the answer's JSON object."""
        positions = positions_of(self.progress)
        about = {"complete": not self.missing, "missing": self.missing, "positions": positions}
        return b"," + json.dumps(about, separators=(",", ":")).encode()[1:]


async def read_partitions(
    reads: Reads,
    partitions: Collection[int],
    options: ReadOptions,
    deadline: float,
    partial: bool | None,
    read: Callable[[Coverage], Awaitable[T]],
) -> tuple[T, Coverage]:
    """Find replicas that may answer, and `read` them; start over with others if one is lost meanwhile.

    Both parts end at the deadline with a failure of their own: the search names what is missing, the reading says that time is
    over. The search may change the partitioning.
    """
    failed_nodes: frozenset[int] = frozenset()
    undamaged = False
    for attempts_left in reversed(range(_ATTEMPTS)):
        covered = await coverage(reads, partitions, options, deadline, partial, failed_nodes, undamaged)
        try:
            async with within_deadline(deadline):
                return await read(covered), covered
        except ReplicasLost as lost:
            if asyncio.get_running_loop().time() > deadline - _REPLY_RESERVE_SECONDS:
                raise _deadline_exceeded() from None
            if not attempts_left:
                raise Failure(
                    Reason.NOT_AVAILABLE,
                    f"other nodes failed during the read: {lost}",
                    "retry",
                    retry_after_ms=1000,
                ) from None
            failed_nodes |= {lost.ordinal}
        except Failure as failure:
            if failure.reason is not Reason.NOT_AVAILABLE or not attempts_left:
                raise
            undamaged = True  # a part of a replica here is unreadable, or the replica has left this node
    raise AssertionError("not reached")


async def coverage(
    reads: Reads,
    partitions: Collection[int],
    options: ReadOptions,
    deadline: float,
    partial: bool | None,
    failed_nodes: frozenset[int] = frozenset(),
    undamaged: bool = False,
) -> Coverage:
    """Find replicas that may answer, waiting for them as `options` ask. Raises Failure that names what is missing.

    Nodes in `failed_nodes` are tried last. With `undamaged`, damaged replicas here do not count. `partial` says whether a part
    is enough; None: this kind of read never is. Then the search takes half of the time, and the other half is for reading. The
    search ends by itself at the deadline, and no caller may cut it off: it knows what is missing.
    """
    if partial:
        deadline = half_of_remaining_time(deadline)
    hosted = reads.replicas.by_partition.keys() & partitions
    local: dict[int, ChosenReplica] = {}
    progress: dict[int, ReplicaProgress] = {}
    searches: list[RemoteSearch] = []

    async def search_here() -> None:
        last = options.route == "local"
        replicas, refusals = await readable_local_replicas(
            reads, sorted(hosted), options, deadline, last, undamaged
        )
        local.update({partition: ChosenReplica.of(replica) for partition, replica in replicas.items()})
        now_ms = monotonic_ms()
        progress.update({partition: progress_of(replica, now_ms) for partition, replica in replicas.items()})
        await search_elsewhere(refusals)

    async def search_elsewhere(refusals: dict[int, Failure]) -> None:
        search = RemoteSearch(reads, refusals, options, deadline, failed_nodes)
        searches.append(search)
        if refusals and options.route != "local":
            await search.run()

    others = {partition: not_hosted_here(partition) for partition in {*partitions} - hosted}
    if others:  # at the same time: replicas here may have to catch up
        await gather_or_cancel((search_here(), search_elsewhere(others)))
    else:
        await search_here()
    found = _compose(reads, local, progress, searches, partial, failed_nodes)
    reads.node.note_read()
    return found


def _compose(
    reads: Reads,
    local: Mapping[int, ChosenReplica],
    progress: dict[int, ReplicaProgress],
    searches: Sequence[RemoteSearch],
    partial: bool | None,
    failed_nodes: frozenset[int],
) -> Coverage:
    """Return what the searches found, here and elsewhere. Raises Failure if the read is not whole and a part is not enough."""
    refusals: dict[int, Failure] = {}
    remote: dict[int, dict[int, Chosen]] = {}
    for search in searches:
        refusals |= search.refusals
        for ordinal, covered in search.covered.items():
            progress |= covered
            positions = {
                partition: Chosen(replica.position, replica.complete)
                for partition, replica in covered.items()
            }
            remote.setdefault(ordinal, {}).update(positions)
    if refusals and not partial:
        raise _missing_partitions_failure(refusals, partial is not None)
    incomplete = [partition for partition, replica in progress.items() if not replica.complete]
    ordered = tuple(progress[partition] for partition in sorted(progress))
    headers = reads.answers.freshness_lines(ordered, 1 if remote else 0) + reads.identity
    return Coverage(local, remote, tuple(sorted([*refusals, *incomplete])), ordered, headers, failed_nodes)


async def readable_local_replicas(
    reads: Reads,
    partitions: list[int],
    options: ReadOptions,
    deadline: float,
    last: bool,
    undamaged: bool = False,
) -> tuple[dict[int, Replica], dict[int, Failure]]:
    """Return the replicas of this node that may answer, and why the others may not.

    `last` says that no other node is tried for those.
    """
    needed = await reads.wait_until_fresh(options, partitions, deadline, last)
    now_ms = monotonic_ms()
    replicas: dict[int, Replica] = {}
    refusals: dict[int, Failure] = {}
    for partition in partitions:
        try:
            replica = reads.readable_replica(partition, options, needed, now_ms)
            _ = replica.store  # raises if it is not open
            if undamaged and replica.damaged is not None:
                raise absent(replica, "on this node is damaged")
            replicas[partition] = replica
        except Failure as refusal:
            refusals[partition] = refusal
    return replicas, refusals


def _missing_partitions_failure(refusals: Mapping[int, Failure], may_be_partial: bool) -> Failure:
    """Return one failure for all refused partitions; an absent replica weighs more than one that lags, and a late node least."""
    worst = min(refusals.values(), key=lambda refusal: _REASONS.index(refusal.reason))
    more = f" (and {len(refusals) - 1} more partitions)" if len(refusals) > 1 else ""
    return Failure(
        worst.reason,
        worst.detail + more,
        worst.advice + ("; or read the other partitions with partial=allow" if may_be_partial else ""),
        retry_after_ms=worst.retry_after_ms,
        missing=tuple(sorted(refusals)),
    )


def half_of_remaining_time(deadline: float) -> float:
    """Return the moment (loop time) halfway to the deadline."""
    now = asyncio.get_running_loop().time()
    return now + (deadline - now) / 2


@asynccontextmanager
async def within_deadline(deadline: float) -> AsyncIterator[None]:
    """End the work inside at the deadline (loop time), with the failure that says so."""
    try:
        async with asyncio.timeout_at(deadline):
            yield
    except TimeoutError:
        raise _deadline_exceeded() from None


def _deadline_exceeded() -> Failure:
    return Failure(
        Reason.DEADLINE_EXCEEDED,
        "the answer was not finished in time",
        "ask for less at once, or for more time with deadline-ms",
    )
