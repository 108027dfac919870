"""Reads over several partitions: whose copies answer, which are missing, and what the answer says about that.

Strategy: the copies here come first, then those of other nodes, in the placement's order, until every partition has one
or nobody is left to ask. A partition whose copies may not answer is never left out in silence: either the whole read
fails and names it, or the caller allowed a part, and the answer names it. With `any` a copy that is still being built
answers with what it has, and is named as well.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

from queryable_app.errors import REASONS_TO_TRY_ELSEWHERE, Failure, Reason
from queryable_app.platform.clock import monotonic_ms
from queryable_app.policy.attempts import Attempts, SendTo, Wait, no_other_replica_failure
from queryable_app.policy.freshness import ReadOptions, absent
from queryable_app.serve.base.answer_reservation import AnswerReservation
from queryable_app.serve.base.peer_frames import RawRow
from queryable_app.serve.peers.client import PeerUnavailable
from queryable_app.serve.reads import peer_reads
from queryable_app.serve.reads.multi_get import (
    VALUE_BYTES_MAX,
    Keys,
    Rows,
    merge_newest,
    rows_of_keys,
    values_too_large,
)
from queryable_app.serve.reads.peer_reads import CoverAnswer, Positions, ReplicasLost
from queryable_app.serve.reads.point import Reads, ReplicaProgress, found, not_hosted_here, progress_of
from queryable_app.serve.reads.scans import (
    Batches,
    Bounds,
    count_local,
    counted,
    gather_or_cancel,
    local_rows,
    merge_sources,
    newest_of_each_key,
)
from queryable_app.serve.store.replica import Replica
from queryable_app.wire.http_text import Answer
from queryable_app.wire.partitioners import SCATTER

T = TypeVar("T")

_ATTEMPTS: Final = 3
_REPLY_RESERVE_SECONDS: Final = (
    0.01  # another node that ran out of time says so a little before this one does
)
_STREAM_SECONDS_MIN: Final = 1.0
_NOTHING: Final = CoverAnswer({}, {})


@dataclass(frozen=True, slots=True)
class Coverage:
    here: Mapping[int, Replica]
    there: Mapping[int, Positions]  # ordinal → the partitions that it answers
    missing: tuple[int, ...]  # of these there may be rows that the answer does not have
    standings: tuple[ReplicaProgress, ...]  # as of which the answer holds; later rows may be in it too
    headers: bytes
    lost: frozenset[int]  # nodes that this read has left

    def may_retry_elsewhere(self, ordinal: int) -> bool:
        """Once. A node that has been left, and is asked again, is the only one."""
        return ordinal not in self.lost

    def fields(self) -> bytes:
        """The end of the answer's JSON object."""
        positions = {standing.partition: standing.position for standing in self.standings}
        about = {"complete": not self.missing, "missing": self.missing, "positions": positions}
        return b"," + json.dumps(about, separators=(",", ":")).encode()[1:]


async def read_partitions(
    reads: Reads,
    partitions: Collection[int],
    asked: ReadOptions,
    deadline: float,
    partial: bool | None,
    read: Callable[[Coverage], Awaitable[T]],
) -> tuple[T, Coverage]:
    """Looks for copies that may answer, and reads what they have. Each ends at the deadline in words of its own: the
    search knows what is missing, the reading that time is over. Where producers place keys may be known better after the
    search than before it."""
    lost: frozenset[int] = frozenset()
    whole = False
    for left in reversed(range(_ATTEMPTS)):
        covered = await coverage(reads, partitions, asked, deadline, partial, lost, whole)
        try:
            async with until(deadline):
                return await read(covered), covered
        except ReplicasLost as error:
            if asyncio.get_running_loop().time() > deadline - _REPLY_RESERVE_SECONDS:
                raise _too_late() from None
            if not left:
                raise Failure(
                    Reason.NOT_AVAILABLE, f"other nodes went away: {error}", "retry", retry_after_ms=1000
                ) from None
            lost |= {error.ordinal}
        except Failure as failure:
            if failure.reason is not Reason.NOT_AVAILABLE or not left:
                raise
            whole = True  # a part of a copy here cannot be read, or it has left this node
    raise AssertionError("not reached")


async def coverage(
    reads: Reads,
    partitions: Collection[int],
    asked: ReadOptions,
    deadline: float,
    partial: bool | None,
    lost: frozenset[int] = frozenset(),
    whole: bool = False,
) -> Coverage:
    """Copies that may answer, caught up as far as was asked for; `lost` are nodes to ask last, and with `whole` no copy here
    is taken that is damaged. Raises Failure, naming what is missing. It ends by itself, and nobody may cut it off: that time
    is over says less than what it found missing. Where a part is enough it takes half of the time, so that the part can be
    read in the other half; None: this kind of read takes no part."""
    if partial:
        deadline = _half_of_remaining_time(deadline)
    held = reads.replicas.by_partition.keys() & partitions
    elsewhere = {partition: not_hosted_here(partition) for partition in {*partitions} - held}
    alone = asked.route == "local"
    here: dict[int, Replica] = {}
    there: dict[int, Positions] = {}
    standings: dict[int, ReplicaProgress] = {}
    refusals: dict[int, Failure] = {}

    async def ask_others(refused: dict[int, Failure]) -> None:
        if refused and not alone:
            await _cover_remotely(reads, asked, deadline, there, standings, refused, lost)
        refusals.update(refused)

    async def look_here() -> None:
        replicas, refused = await readable_local_replicas(reads, sorted(held), asked, deadline, alone, whole)
        here.update(replicas)
        now_ms = monotonic_ms()
        standings.update({partition: progress_of(replica, now_ms) for partition, replica in replicas.items()})
        await ask_others(refused)

    if elsewhere:  # while the replicas here catch up
        await gather_or_cancel((look_here(), ask_others(elsewhere)))
    else:
        await look_here()
    if refusals and not partial:
        raise _missing_partitions_failure(refusals, partial is not None)
    incomplete = [partition for partition, standing in standings.items() if not standing.complete]
    ordered = tuple(standings[partition] for partition in sorted(standings))
    headers = reads.freshness_lines(ordered, 1 if there else 0) + reads.identity
    return Coverage(here, there, tuple(sorted([*refusals, *incomplete])), ordered, headers, lost)


async def readable_local_replicas(
    reads: Reads, partitions: list[int], asked: ReadOptions, deadline: float, last: bool, whole: bool = False
) -> tuple[dict[int, Replica], dict[int, Failure]]:
    """The copies of this node that may answer, and why the others may not. `last`: no other node is asked for those."""
    needed = await reads.wait_until_fresh(asked, partitions, deadline, last)
    now_ms = monotonic_ms()
    reads.note_read()
    replicas: dict[int, Replica] = {}
    refusals: dict[int, Failure] = {}
    for partition in partitions:
        try:
            replica = reads.readable_replica(partition, asked, needed, now_ms)
            _ = replica.store  # one that could not be opened says so
            if whole and replica.damaged is not None:
                raise absent(replica, "on this node is damaged")
            replicas[partition] = replica
        except Failure as refusal:
            refusals[partition] = refusal
    return replicas, refusals


async def _cover_remotely(
    reads: Reads,
    asked: ReadOptions,
    deadline: float,
    there: dict[int, Positions],
    standings: dict[int, ReplicaProgress],
    refusals: dict[int, Failure],
    lost: Collection[int],
) -> None:
    """Ask other nodes for the refused partitions, each node for several at once, until all are covered or no node is left.
    What is covered leaves `refusals` and enters `there` and `standings`."""
    peers, loop = reads.node.peers, asyncio.get_running_loop()
    attempts = {
        partition: attempt
        for partition in refusals
        if (attempt := peers.attempts(partition, deadline, asked, lost)) is not None
    }
    running: dict[asyncio.Task[CoverAnswer], tuple[int, list[int]]] = {}
    try:
        while True:
            now = loop.time()
            asking: dict[int, list[int]] = {}
            until = 0.0
            for partition in refusals.keys() & attempts.keys():
                while isinstance(step := attempts[partition].step(now), SendTo):
                    asking.setdefault(step.ordinal, []).append(partition)
                if isinstance(step, Wait):
                    until = min(until or step.until, step.until)
                else:
                    del attempts[partition]
                    refusals[partition] = no_other_replica_failure(refusals[partition])
            for ordinal, partitions in asking.items():
                task = asyncio.create_task(peer_reads.cover(peers, ordinal, partitions, asked, deadline))
                running[task] = ordinal, partitions
            if not until:
                return
            done, _ = await asyncio.wait(
                running, timeout=until - loop.time(), return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                ordinal, partitions = running.pop(task)
                said = _said(task)
                reads.replicas.note_mismatched(said.mismatched)
                covered = _note_covered(said, partitions, attempts, ordinal, standings, refusals)
                if covered:
                    positions = {partition: standings[partition].position for partition in covered}
                    there[ordinal] = {**there.get(ordinal, {}), **positions}
    finally:
        for task in running:
            task.cancel()


def _said(task: asyncio.Task[CoverAnswer]) -> CoverAnswer:
    try:
        return task.result()
    except PeerUnavailable:
        return _NOTHING


def _note_covered(
    said: CoverAnswer,
    partitions: list[int],
    attempts: Mapping[int, Attempts],
    ordinal: int,
    standings: dict[int, ReplicaProgress],
    refusals: dict[int, Failure],
) -> tuple[int, ...]:
    """What a node has said it covers, without what another one has covered meanwhile."""
    open_yet = refusals.keys() & partitions
    covered = tuple(partition for partition in said.standings if partition in open_yet)
    for partition in covered:
        standings[partition] = said.standings[partition]
        del refusals[partition]
    for partition in open_yet.difference(covered):
        attempts[partition].failed(ordinal)
        refusals[partition] = said.refused.get(partition, refusals[partition])
    return covered


def _missing_partitions_failure(refusals: Mapping[int, Failure], may_be_partial: bool) -> Failure:
    """One failure for all of them; a partition that is not there weighs more than one that is behind."""
    worst = min(refusals.values(), key=lambda refusal: REASONS_TO_TRY_ELSEWHERE.index(refusal.reason))
    more = f" (and {len(refusals) - 1} more partitions)" if len(refusals) > 1 else ""
    return Failure(
        worst.reason,
        worst.detail + more,
        worst.advice + ("; or read the other partitions with partial=allow" if may_be_partial else ""),
        retry_after_ms=worst.retry_after_ms,
        missing=tuple(sorted(refusals)),
    )


def covered_rows(
    reads: Reads, covered: Coverage, bounds: Bounds, deadline: float, share: AnswerReservation | None
) -> Batches:
    """The rows of all covered partitions in key order; of each key one row, which may be a tombstone. `share` counts the
    batches that are being read. A stream has none: there are few of them, and one that has begun cannot begin again. It has
    for each batch the time that it had for the first."""
    begins_again = share is not None
    here, peers = list(covered.here.values()), reads.node.peers
    left = deadline - asyncio.get_running_loop().time()
    seconds = left / 2 if begins_again else max(_STREAM_SECONDS_MIN, left)
    sources: list[Batches] = [local_rows(here, bounds, reads.node.read_admission.yield_slot)] if here else []
    sources += [
        peer_reads.rows(
            peers, ordinal, positions, bounds, seconds, begins_again and covered.may_retry_elsewhere(ordinal)
        )
        for ordinal, positions in covered.there.items()
    ]
    if share is not None:
        sources = [counted(source, share) for source in sources]
    batches = sources[0] if len(sources) == 1 else merge_sources(sources, bounds.reverse)
    return newest_of_each_key(batches) if reads.replicas.algorithm == SCATTER else batches


async def look_up_keys(
    reads: Reads, covered: Coverage, keys: Keys, deadline: float, share: AnswerReservation
) -> Rows:
    """The newest row of each key, from all covered partitions at once. What they weigh together is bounded while they come."""
    rows: Rows = {}
    size = 0

    def keep(batch: list[RawRow]) -> None:
        nonlocal size
        grown = merge_newest(rows, batch)
        share.take(grown)
        size += grown
        if size > VALUE_BYTES_MAX:
            raise values_too_large()

    async def look_here() -> None:
        async with aclosing(
            rows_of_keys(covered.here, keys, reads.node.read_admission.yield_slot)
        ) as batches:
            async for _, batch in batches:
                keep(batch)

    async def ask(ordinal: int, positions: Positions) -> None:
        may_retry_elsewhere = covered.may_retry_elsewhere(ordinal)
        # Of a node that was asked for a position alone no key is wanted.
        wanted = {partition: position for partition, position in positions.items() if partition in keys}
        answers = peer_reads.keys(
            reads.node.peers, ordinal, wanted, keys, _half_of_remaining_time(deadline), may_retry_elsewhere
        )
        async with aclosing(answers) as batches:
            async for batch in batches:
                keep(batch)

    try:
        await gather_or_cancel((look_here(), *(ask(*there) for there in covered.there.items())))
    except BaseException:
        share.release(size)  # the read may begin again
        raise
    return rows


async def read_key_across_partitions(
    reads: Reads,
    record_key: bytes,
    asked: ReadOptions,
    deadline: float,
    form: str,
    if_none_match: str | None,
    share: AnswerReservation,
) -> Answer:
    """Answer a point read that several partitions decide: those that may hold the key, and those whose positions it names."""
    disk_key = reads.node.codec.to_disk(record_key)
    partitions = reads.partitions_of(record_key)
    keys = dict.fromkeys(partitions, (disk_key,))

    async def looking_up(covered: Coverage) -> Rows:
        return await look_up_keys(reads, covered, keys, deadline, share)

    wanted = {*partitions, *asked.min_positions}
    rows, covered = await read_partitions(reads, wanted, asked, deadline, None, looking_up)
    if reads.partitions_of(record_key) != partitions:  # as in a multi-get
        share.end()
        return await read_key_across_partitions(
            reads, record_key, asked, deadline, form, if_none_match, share
        )
    row = rows.get(disk_key)
    newest = None if row is None else found(*row)
    return reads.answer(newest, covered.standings, 1, form, if_none_match)


async def count_covered(reads: Reads, covered: Coverage, approximate: bool, deadline: float) -> int:
    """The counts of all covered partitions together: each key is in one of them."""
    peers = reads.node.peers
    there = (
        peer_reads.count(
            peers, ordinal, positions, approximate, deadline, covered.may_retry_elsewhere(ordinal)
        )
        for ordinal, positions in covered.there.items()
    )
    here = count_local(list(covered.here.values()), approximate, reads.node.read_admission.yield_slot)
    return sum(await gather_or_cancel((here, *there)))


def _half_of_remaining_time(deadline: float) -> float:
    """Of the time that is left."""
    now = asyncio.get_running_loop().time()
    return now + (deadline - now) / 2


@asynccontextmanager
async def until(deadline: float) -> AsyncIterator[None]:
    """Work that ends at the deadline (loop time), finished or not."""
    try:
        async with asyncio.timeout_at(deadline):
            yield
    except TimeoutError:
        raise _too_late() from None


def _too_late() -> Failure:
    return Failure(
        Reason.DEADLINE_EXCEEDED,
        "the answer was not finished in time",
        "ask for less at once, or for more time with deadline-ms",
    )
