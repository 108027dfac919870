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
from typing import Any, Final, TypeVar

from queryable_app.aggregates.clock import NO_TIME_MS
from queryable_app.errors import REASONS_TO_TRY_ELSEWHERE, Failure, Reason
from queryable_app.policy.freshness import ReadOptions
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
from queryable_app.serve.reads.scans import Bounds

T = TypeVar("T")

COVER: Final = "/internal/v1/cover"
ROWS: Final = "/internal/v1/rows"
KEYS: Final = "/internal/v1/keys"
COUNT: Final = "/internal/v1/count"

ROWS_MAX: Final = 2048
"""The bound of one answer with rows of a range, plus the rest of its last key."""
KEYS_BYTES_MAX: Final = 1 << 20
"""The bound of one answer with rows of keys: the row that exceeds it is its last."""
REQUEST_KEYS_BYTES_MAX: Final = 1 << 20
"""The bound of the keys in one request, as base64: the key that exceeds it goes in the next request."""

Positions = Mapping[int, int]
"""Partition → the position of its replica when the node said that it may answer.

If the replica is behind that when it is read, another one has taken its place: it was damaged and replaced, or its node lost
power.
"""

ParseAnswer = Callable[[dict[str, Any], list[RawRow]], T]
"""Parse the head and the rows of an answer. Raises any exception if they are malformed."""


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
) -> AsyncGenerator[list[RawRow], None]:
    """Yield the rows of a node's replicas in key order. Raises ReplicasLost if a batch takes longer than `seconds`.

    The first batch has `first_rows_max` rows at most, and each one after it twice as many, up to what a node answers at once;
    None: all have that many.
    """
    rows_max = first_rows_max
    while True:
        limit = {} if rows_max is None else {"rowsMax": rows_max}
        body = {
            "positions": _positions_json(positions),
            "start": _base64(bounds.start),
            "stop": _base64(bounds.stop),
            "reverse": bounds.reverse,
            **limit,  # a node of an earlier version ignores it
            **({} if bounds.starts is None else {"starts": bounds.starts}),
        }
        deadline = asyncio.get_running_loop().time() + seconds
        elsewhere = positions if may_retry_elsewhere else None
        batch, last = await _read(peers, ordinal, ROWS, body, deadline, _rows_answer, elsewhere)
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
        of_batch = {partition: positions[int(partition)] for partition in encoded}
        body = {"positions": of_batch, "keys": encoded, "bytesMax": KEYS_BYTES_MAX}
        elsewhere = [int(partition) for partition in encoded] if may_retry_elsewhere else None
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
) -> int:
    """Return how many keys a node's replicas have. Raises ReplicasLost."""
    body = {"positions": _positions_json(positions), "approximate": approximate}
    elsewhere = positions if may_retry_elsewhere else None
    return await _read(peers, ordinal, COUNT, body, deadline, _count_answer, elsewhere)


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


def _rows_answer(head: dict[str, Any], rows: list[RawRow]) -> tuple[list[RawRow], bool]:
    last = bool(head["last"])
    if not rows and not last:
        raise ValueError("no rows, and more of them")
    return rows, last


def _keys_answer(head: dict[str, Any], rows: list[RawRow]) -> tuple[int | None, list[RawRow]]:
    answered = head.get("answered")
    if answered is not None and int(answered) < 1:
        raise ValueError("no key is answered")
    return answered, rows


def _count_answer(head: dict[str, Any], _: list[RawRow]) -> int:
    return int(head["count"])


def _base64(key: bytes | None) -> str | None:
    return None if key is None else b64encode(key).decode()


def _positions_json(positions: Positions) -> dict[str, int]:
    return {str(partition): position for partition, position in positions.items()}
