"""Read rows, keys and counts from the replicas that a `Coverage` names, here and on other nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from contextlib import aclosing
from typing import Final

from queryable_app.policy.freshness import ReadOptions
from queryable_app.serve.base.answer_reservation import AnswerReservation
from queryable_app.serve.base.combining import added_counts
from queryable_app.serve.base.look_budget import LookBudget
from queryable_app.serve.base.peer_frames import RawRow
from queryable_app.serve.reads import peer_reads
from queryable_app.serve.reads.chosen_replica import ChosenReplica
from queryable_app.serve.reads.coverage import Coverage, half_of_remaining_time, read_partitions
from queryable_app.serve.reads.multi_get import (
    VALUE_BYTES_MAX,
    KeyLookup,
    Keys,
    Rows,
    add_rows,
    plan_lookups,
    rows_of_keys,
    values_too_large,
)
from queryable_app.serve.reads.peer_reads import Positions
from queryable_app.serve.reads.point import Reads
from queryable_app.serve.reads.row_filter import row_filter
from queryable_app.serve.reads.scans import (
    BATCH_ROWS,
    Batches,
    Bounds,
    count,
    count_local,
    gather_or_cancel,
    local_rows,
    merge_sources,
    one_row_of_each_key,
    within_budget,
)
from queryable_app.serve.reads.stored_row import stored_row
from queryable_app.wire.http_text import Answer
from queryable_app.wire.where import Where

_STREAM_SECONDS_MIN: Final = 1.0
_FIRST_ROWS_MIN: Final = 16


def covered_rows(
    reads: Reads,
    covered: Coverage,
    bounds: Bounds,
    deadline: float,
    reservation: AnswerReservation | None,
    limit: int | None,
    where: Where | None = None,
    looks: LookBudget | None = None,
) -> Batches:
    """Yield the rows of all covered partitions in key order, one row for each key, which may be a tombstone.

    With `where`, yield those that match, and tombstones in place of some others. Each node filters its own rows, unless a key
    may be in several partitions. `looks` counts the rows that are looked at; the caller ends the read when they are enough.

    Of an index it yields the rows of all partitions, or one number for each value; `index_reads.py` has the rest.

    `limit` says how many rows are wanted; None: all. The first batch of each node then has twice its share of them. So a short
    page of a large view does not collect thousands of rows of every node.

    `reservation` takes the size of the batches that are being read. A stream has none: there are few streams, and a stream that
    has begun cannot start over. Each batch of a stream has as much time as the first.
    """
    may_start_over = reservation is not None
    local, peers = list(covered.local.values()), reads.node.peers
    remaining = deadline - asyncio.get_running_loop().time()
    seconds = remaining / 2 if may_start_over else max(_STREAM_SECONDS_MIN, remaining)
    shares = len(covered.remote) + bool(local)
    first_rows_max = None
    if limit is not None:
        first_rows_max = min(peer_reads.ROWS_MAX, max(_FIRST_ROWS_MIN, -(-2 * limit // max(1, shares))))
    scattered, row_matches = reads.partitioning.scattered, row_filter(reads.node, where)
    looks = LookBudget() if looks is None else looks
    early = None if row_matches is None or scattered else peer_reads.PeerFilter(row_matches, looks, shares)
    sources: list[Batches] = []
    if local:
        # Each row of an index is a look-up.
        wanted = BATCH_ROWS if limit is None or bounds.index is None or row_matches else limit
        rows = local_rows(local, bounds, reads.node.read_admission.yield_slot, wanted)
        sources = [rows if early is None else early.rows.matching(rows, looks)]
    sources += [
        peer_reads.rows(
            peers,
            ordinal,
            positions,
            bounds,
            seconds,
            may_start_over and covered.may_retry_elsewhere(ordinal),
            first_rows_max,
            early,
        )
        for ordinal, positions in covered.remote.items()
    ]
    if reservation is not None:
        sources = [within_budget(source, reservation) for source in sources]
    batches = sources[0] if len(sources) == 1 else merge_sources(sources, bounds.reverse)
    if bounds.index is not None:
        return one_row_of_each_key(batches, added_counts) if bounds.index == "values" else batches
    if not scattered:
        return batches
    batches = one_row_of_each_key(batches, reads.node.combine)
    return batches if row_matches is None else row_matches.matching(batches, looks)


async def look_up_keys(
    reads: Reads, covered: Coverage, keys: Keys, deadline: float, reservation: AnswerReservation
) -> Rows:
    """Return one row of each key, from all covered partitions at once. Raises Failure if the values are too large."""
    rows: Rows = {}
    size = 0

    def add(batch: list[RawRow]) -> None:
        nonlocal size
        grown = add_rows(rows, batch, reads.node.combine)
        reservation.take(grown)
        size += grown
        if size > VALUE_BYTES_MAX:
            raise values_too_large()

    async def look_up_here() -> None:
        yield_slot = reads.node.read_admission.yield_slot
        async with aclosing(rows_of_keys(covered.local, keys, yield_slot)) as batches:
            async for _, batch in batches:
                add(batch)

    async def look_up_at(ordinal: int, positions: Positions) -> None:
        retry_elsewhere = covered.may_retry_elsewhere(ordinal)
        # A partition without keys is covered because the read names its position.
        wanted = {partition: position for partition, position in positions.items() if partition in keys}
        seconds_at = half_of_remaining_time(deadline)
        answers = peer_reads.keys(reads.node.peers, ordinal, wanted, keys, seconds_at, retry_elsewhere)
        async with aclosing(answers) as batches:
            async for batch in batches:
                add(batch)

    try:
        await gather_or_cancel((look_up_here(), *(look_up_at(*each) for each in covered.remote.items())))
    except BaseException:
        reservation.release(size)  # the read may start over
        raise
    return rows


async def find_rows(
    reads: Reads,
    record_keys: Sequence[bytes],
    options: ReadOptions,
    deadline: float,
    partial: bool | None,
    reservation: AnswerReservation,
) -> tuple[list[KeyLookup], Rows, Coverage]:
    """Look the keys up wherever they may be, and return the lookups, the rows found, and the replicas that were read.

    The lookup starts over if the partitioning changes meanwhile, which happens at most once for each algorithm.
    """
    while True:
        partitioning = reads.partitioning
        lookups, keys = await plan_lookups(record_keys, reads.node.codec, partitioning)
        rows, covered = await _find_planned(reads, keys, options, deadline, partial, reservation)
        if reads.partitioning == partitioning:
            return lookups, rows, covered
        reservation.end()


async def _find_planned(
    reads: Reads,
    keys: Keys,
    options: ReadOptions,
    deadline: float,
    partial: bool | None,
    reservation: AnswerReservation,
) -> tuple[Rows, Coverage]:
    async def look_up(covered: Coverage) -> Rows:
        return await look_up_keys(reads, covered, keys, deadline, reservation)

    partitions = {*keys, *options.min_positions}
    return await read_partitions(reads, partitions, options, deadline, partial, look_up)


def unknown_partitions(reads: Reads, options: ReadOptions, covered: Coverage) -> Collection[int]:
    """Return the partitions in which a key may be although it was not found.

    The key may be in a partition that the view does not read. While a position that the read names is not reached, it may be
    in another partition than the one in which it was looked up.
    """
    anywhere = reads.replicas.unplaced_partitions or options.min_positions.keys() & {*covered.missing}
    return range(reads.replicas.partitions) if anywhere else covered.missing


async def read_key_across_partitions(
    reads: Reads,
    record_key: bytes,
    options: ReadOptions,
    deadline: float,
    form: str,
    if_none_match: str | None,
    reservation: AnswerReservation,
) -> Answer:
    """Answer a point read that several partitions decide: those that may hold the key, and those whose positions it names."""
    lookups, rows, covered = await find_rows(reads, [record_key], options, deadline, None, reservation)
    raw = rows.get(lookups[0].disk_key)
    newest = None if raw is None else stored_row(*raw)
    return reads.answers.of_newest(newest, covered.progress, 1, form, if_none_match)


async def count_covered(
    reads: Reads, covered: Coverage, approximate: bool, deadline: float, where: Where | None = None
) -> int:
    """Add up the counts of all covered partitions, of the keys whose rows match. Each key must be in one of them only."""
    peers = reads.node.peers
    remote = (
        peer_reads.count(
            peers, ordinal, positions, approximate, deadline, covered.may_retry_elsewhere(ordinal), where
        )
        for ordinal, positions in covered.remote.items()
    )
    local = count_here(reads, list(covered.local.values()), approximate, where)
    return sum(await gather_or_cancel((local, *remote)))


async def count_here(
    reads: Reads, replicas: Sequence[ChosenReplica], approximate: bool, where: Where | None
) -> int:
    """Count the keys of replicas of this node, those whose rows match."""
    yield_slot = reads.node.read_admission.yield_slot
    row_matches = row_filter(reads.node, where)
    if row_matches is None or not replicas:
        return await count_local(replicas, approximate, yield_slot)
    rows = local_rows(replicas, Bounds(), yield_slot)
    async with aclosing(row_matches.matching(rows, LookBudget())) as batches:
        return await count(batches)
