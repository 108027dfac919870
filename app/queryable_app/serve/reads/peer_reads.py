"""Ask another node for its part of a read over several partitions: which of its replicas may answer; their rows, keys and counts.

Strategy: a node that said that its replicas may answer can still fail before it does. `ReplicasLost` then ends the whole read,
which starts over with replicas of other nodes. With `may_retry_elsewhere`, such a read does not wait for a node that becomes
suspected.
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from queryable_app.aggregates.clock import NO_TIME_MS
from queryable_app.errors import REASONS_TO_TRY_ELSEWHERE, Failure, Reason
from queryable_app.policy.freshness import ReadOptions
from queryable_app.serve.base.look_budget import PAGE_LOOKS_MAX, LookBudget
from queryable_app.serve.base.peer_frames import PeerFrameError, RawRow, decode_rows, read_options_to_json
from queryable_app.serve.peers.client import PeerUnavailable
from queryable_app.serve.peers.peers import (
    DEADLINE_HEADER,
    FRESHNESS_WAIT_SHARE,
    Peers,
    may_wait_for_freshness,
    remaining_ms,
)
from queryable_app.serve.reads.replica_progress import ReplicaProgress
from queryable_app.serve.reads.row_filter import RowFilter
from queryable_app.serve.reads.scans import Bounds
from queryable_app.serve.store.replica_changes import Portion
from queryable_app.wire.change_log import Mark
from queryable_app.wire.checked import (
    OFFSET_MAX,
    base64_bytes,
    by_partition,
    list_of,
    offset,
    optional,
    whole,
)
from queryable_app.wire.where import Where

T = TypeVar("T")

COVER: Final = "/internal/v1/cover"
ROWS: Final = "/internal/v1/rows"
KEYS: Final = "/internal/v1/keys"
COUNT: Final = "/internal/v1/count"
CHANGES: Final = "/internal/v1/changes"

ROWS_MAX: Final = 2048
"""The bound of one answer with rows of a range, plus the rest of its last key."""
LOOKS_MAX: Final = 8192
LOOKS_MIN: Final = 512
"""The bounds of the rows that a node looks at for one answer, if it filters them."""
LOOK_BYTES_MAX: Final = 4 << 20
KEYS_BYTES_MAX: Final = 1 << 20
"""The bound of one answer with rows of keys: the row that exceeds it is its last."""
REQUEST_KEYS_BYTES_MAX: Final = 1 << 20
"""The bound of the keys in one request, as base64: the key that exceeds it goes in the next request."""

_CHANGES_SECONDS: Final = 2.0
"""How long an answer with changes may take beyond the wait for them."""


class Chosen(NamedTuple):
    """Describe a replica of another node when that node said that it may answer.

    If it is behind this when it is read, it was emptied since, or another one has taken its place: it was damaged and replaced,
    or its node lost power.
    """

    position: int
    complete: bool


Positions = Mapping[int, Chosen]
"""By partition."""

ParseAnswer = Callable[[dict[str, Any], list[RawRow]], T]
"""Parse the head and the rows of an answer. Raises any exception if they are malformed."""


Looked = tuple[int, int]
"""How many rows a node has looked at for an answer, and their bytes."""


class ReplicasLost(Exception):
    """A node does not answer any more, after it said that its replicas may answer."""

    def __init__(self, ordinal: int, why: object) -> None:
        super().__init__(f"node {ordinal}: {why}")
        self.ordinal = ordinal


@dataclass(frozen=True, slots=True)
class CoverAnswer:
    """The replicas of a node that may answer, and why the others may not; by partition."""

    progress: Mapping[int, ReplicaProgress]
    refused: Mapping[int, Failure]
    mismatched: frozenset[str] = frozenset()
    """The partitioners that some record does not follow, as far as the node knows."""


@dataclass(frozen=True, slots=True)
class PeerFilter:
    """What the nodes of one read need to filter their rows, and the budget that they all use."""

    rows: RowFilter
    looks: LookBudget
    nodes: int

    def to_json(self) -> dict[str, Any]:
        """Return the fields of a request for rows. The more nodes, the fewer rows each looks at ahead of the others."""
        looks_max = max(LOOKS_MIN, min(LOOKS_MAX, PAGE_LOOKS_MAX // (2 * self.nodes)))
        return {"where": self.rows.where.text, "looksMax": looks_max}

    def add(self, batch: list[RawRow], looked: Looked | None) -> list[RawRow]:
        """Return the rows of an answer that match. A node of an earlier version has not filtered them."""
        if looked is None:
            looked = len(batch), sum(len(stored) for _, _, stored in batch)
            batch = self.rows.of_batch(batch)
        self.looks.take(*looked)
        return batch


async def cover(
    peers: Peers, ordinal: int, partitions: Sequence[int], options: ReadOptions, deadline: float
) -> CoverAnswer:
    """Ask a node which of its replicas may answer, once they are as fresh as `options` ask. Raises PeerUnavailable."""
    asked = read_options_to_json(options, remaining_ms(deadline, FRESHNESS_WAIT_SHARE))
    body = {"partitions": list(partitions), "asked": asked}
    waits = may_wait_for_freshness(options)
    return await _request(peers, ordinal, COVER, body, deadline, _cover_answer, waits)


async def rows(
    peers: Peers,
    ordinal: int,
    positions: Positions,
    bounds: Bounds,
    seconds: float,
    may_retry_elsewhere: bool,
    first_rows_max: int | None,
    filter: PeerFilter | None = None,
) -> AsyncGenerator[list[RawRow], None]:
    """Yield the rows of a node's replicas in key order. Raises ReplicasLost if a batch takes longer than `seconds`.

    The first batch has `first_rows_max` rows at most, and each one after it twice as many, up to what a node answers at once;
    None: all have that many. With `filter`, the other node removes what does not match.
    """
    rows_max = first_rows_max
    conditions = {} if filter is None else filter.to_json()
    while True:
        limit = {} if rows_max is None else {"rowsMax": rows_max}
        body = {
            **_positions_json(positions),
            "start": _base64(bounds.start),
            "stop": _base64(bounds.stop),
            "reverse": bounds.reverse,
            **limit,  # a node of an earlier version ignores it
            **({} if bounds.starts is None else {"starts": bounds.starts}),
            **({} if bounds.index is None else {"index": bounds.index}),
            **({} if bounds.as_of is None else {"asOf": bounds.as_of.to_json()}),
            **({} if bounds.versions is None else {"versions": bounds.versions.to_json()}),
            **conditions,
        }
        deadline = asyncio.get_running_loop().time() + seconds
        elsewhere = positions if may_retry_elsewhere else None
        batch, last, looked = await _read(peers, ordinal, ROWS, body, deadline, _rows_answer, elsewhere)
        if filter is not None:
            batch = filter.add(batch, looked)
        if batch:
            yield batch
        if last:
            return
        bounds = bounds.after(batch[-1][0])
        rows_max = None if rows_max is None else min(ROWS_MAX, 2 * rows_max)


async def keys(
    peers: Peers,
    ordinal: int,
    positions: Positions,
    keys: Mapping[int, Sequence[bytes]],
    deadline: float,
    may_retry_elsewhere: bool,
) -> AsyncGenerator[list[RawRow], None]:
    """Yield the rows of the keys in a node's replicas, in batches of about a megabyte. Raises ReplicasLost."""
    wanted = [(partition, key) for partition in positions for key in keys[partition]]
    batch_keys = len(wanted)
    while wanted:
        encoded: dict[str, list[str]] = {}
        size = sent = 0
        for partition, key in wanted[:batch_keys]:
            text = b64encode(key).decode()
            size += len(text)
            if sent and size > REQUEST_KEYS_BYTES_MAX:
                break
            encoded.setdefault(str(partition), []).append(text)
            sent += 1
        of_batch = {int(partition): positions[int(partition)] for partition in encoded}
        body = {**_positions_json(of_batch), "keys": encoded, "bytesMax": KEYS_BYTES_MAX}
        elsewhere = of_batch if may_retry_elsewhere else None
        answered, batch = await _read(peers, ordinal, KEYS, body, deadline, _keys_answer, elsewhere)
        yield batch
        if answered is None:  # a node of an earlier version answers all of them
            answered = sent
        wanted, batch_keys = wanted[answered:], 2 * answered


async def count(
    peers: Peers,
    ordinal: int,
    positions: Positions,
    approximate: bool,
    deadline: float,
    may_retry_elsewhere: bool,
    where: Where | None = None,
) -> int:
    """Return how many keys a node's replicas have, of those that match. Raises ReplicasLost."""
    body: dict[str, Any] = {**_positions_json(positions), "approximate": approximate}
    if where is not None:
        body["where"] = where.text
    elsewhere = positions if may_retry_elsewhere else None
    return await _read(peers, ordinal, COUNT, body, deadline, partial(_count_answer, where), elsewhere)


async def changes(
    peers: Peers, ordinal: int, marks: Mapping[int, Mark], wait_seconds: float
) -> Mapping[int, Portion]:
    """Return the next changes of a node's replicas. If there are none, wait for some. Raises ReplicasLost."""
    body = {"marks": marks_to_json(marks), "waitMs": int(wait_seconds * 1000)}
    deadline = asyncio.get_running_loop().time() + wait_seconds + _CHANGES_SECONDS

    def parse(head: dict[str, Any], rows: list[RawRow]) -> Mapping[int, Portion]:
        read: dict[int, list[RawRow]] = {partition: [] for partition in marks}
        for row in rows:
            read[row[1]].append(row)
        following, compacted = marks_from_json(head["marks"]), by_partition(offset)(head["compacted"])
        return {p: Portion(read[p], following[p], compacted.get(p, -1)) for p in marks}

    return await _read(peers, ordinal, CHANGES, body, deadline, parse, marks)


def marks_to_json(marks: Mapping[int, Mark]) -> dict[str, Sequence[object]]:
    return {str(partition): (at.position, at.until, _base64(at.after)) for partition, at in marks.items()}


def marks_from_json(raw: Any) -> dict[int, Mark]:
    """Raises Malformed."""
    return by_partition(_mark)(raw)


def _mark(raw: object) -> Mark:
    position, until, after = list_of(lambda each: each)(raw)
    return Mark(offset(position), whole(-1, OFFSET_MAX)(until), optional(base64_bytes)(after))


async def _read(
    peers: Peers,
    ordinal: int,
    path: str,
    body: object,
    deadline: float,
    parse: ParseAnswer[T],
    elsewhere: Collection[int] | None,
) -> T:
    """Read from a node. Raises ReplicasLost.

    `elsewhere` are the partitions that other nodes must have for the read to give up on this node when it becomes suspected;
    None: it does not give up.
    """
    unless_suspected = nullcontext() if elsewhere is None else peers.unless_suspected(ordinal, elsewhere)
    try:
        async with unless_suspected:
            return await _request(peers, ordinal, path, body, deadline, parse)
    except PeerUnavailable as unavailable:
        raise ReplicasLost(ordinal, unavailable) from None


async def _request(
    peers: Peers,
    ordinal: int,
    path: str,
    body: object,
    deadline: float,
    parse: ParseAnswer[T],
    waits: bool = True,
) -> T:
    text = json.dumps(body).encode()
    headers = b"%b%b: %d\r\n" % (peers.node_headers, DEADLINE_HEADER.encode(), remaining_ms(deadline))
    answer = await peers.request(ordinal, b"POST", path.encode(), headers, text, deadline, waits)
    if answer.status != 200:
        raise PeerUnavailable(f"it answered {answer.status}")
    return parse_answer(answer.body, parse)


def parse_answer(answer: bytes, parse: ParseAnswer[T]) -> T:
    """Parse an answer. Raises PeerUnavailable for a malformed one, so that the read tries other nodes."""
    try:
        return parse(*decode_rows(answer))
    except (PeerFrameError, LookupError, TypeError, ValueError, OverflowError) as error:
        raise PeerUnavailable(f"its answer is malformed: {error!r}") from None


def _cover_answer(head: dict[str, Any], _: list[RawRow]) -> CoverAnswer:
    progress = [_progress(*each) for each in head["standings"]]
    refused = dict(_refusal(each) for each in head["refused"])
    # A node of an earlier version does not send it.
    mismatched = frozenset(str(name) for name in head.get("contradicted", ()))
    return CoverAnswer({replica.partition: replica for replica in progress}, refused, mismatched)


def _progress(
    partition: Any,
    position: Any,
    role: Any,
    lag_records: Any,
    lag_ms: Any,
    complete: Any,
    sources: Any = (),  # a node of an earlier version does not send it
    max_event_ms: Any = NO_TIME_MS,
) -> ReplicaProgress:
    return ReplicaProgress(
        int(partition),
        int(position),
        str(role),
        int(lag_records),
        int(lag_ms),
        bool(complete),
        tuple([int(offset) for offset in sources]),
        int(max_event_ms),
    )


def refusal_to_json(partition: int, failure: Failure) -> dict[str, Any]:
    return {
        "partition": partition,
        "reason": failure.reason.name,
        "detail": failure.detail,
        "advice": failure.advice,
        "retryAfterMs": failure.retry_after_ms,
    }


def _refusal(raw: Mapping[str, Any]) -> tuple[int, Failure]:
    partition, reason, retry_after_ms = int(raw["partition"]), Reason[raw["reason"]], raw["retryAfterMs"]
    if reason not in REASONS_TO_TRY_ELSEWHERE:
        raise ValueError(f"{reason.name} is not a reason to refuse a partition")
    return partition, Failure(
        reason,
        str(raw["detail"]),
        str(raw["advice"]),
        partition=partition,
        retry_after_ms=None if retry_after_ms is None else int(retry_after_ms),
    )


def _rows_answer(head: dict[str, Any], rows: list[RawRow]) -> tuple[list[RawRow], bool, Looked | None]:
    last = bool(head["last"])
    if not rows and not last:
        raise ValueError("no rows, and more of them")
    looked = head.get("looked")
    return rows, last, None if looked is None else (int(looked[0]), int(looked[1]))


def _keys_answer(head: dict[str, Any], rows: list[RawRow]) -> tuple[int | None, list[RawRow]]:
    answered = head.get("answered")
    if answered is not None and int(answered) < 1:
        raise ValueError("no key is answered")
    return answered, rows


def _count_answer(where: Where | None, head: dict[str, Any], _: list[RawRow]) -> int:
    if where is not None and head.get("where") != where.text:
        raise ValueError("a node of an earlier version counts all rows")
    return int(head["count"])


def _base64(key: bytes | None) -> str | None:
    return None if key is None else b64encode(key).decode()


def _positions_json(positions: Positions) -> dict[str, Any]:
    """Return the fields of a request that name the replicas. A node of an earlier version ignores which were complete."""
    return {
        "positions": {str(partition): chosen.position for partition, chosen in positions.items()},
        "complete": [partition for partition, chosen in positions.items() if chosen.complete],
    }
