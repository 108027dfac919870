"""What one node asks another for reads over several partitions: which of its copies may answer; their rows, keys and counts.

Strategy: a peer that has reported readable replicas may be lost before it answers. `ReplicasLost` then makes the whole read
start over with the replicas of other nodes. `may_retry_elsewhere` says that a read can do that and has not been retried yet;
such a read need not wait for a suspected peer.
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from queryable_app.errors import REASONS_TO_TRY_ELSEWHERE, Failure, Reason
from queryable_app.policy.freshness import ReadOptions
from queryable_app.serve.base.peer_frames import PeerFrameError, RawRow, asked_to_json, decode_rows
from queryable_app.serve.peers.client import PeerUnavailable
from queryable_app.serve.peers.peers import (
    DEADLINE_HEADER,
    FRESHNESS_WAIT_SHARE,
    Peers,
    may_wait_for_freshness,
    remaining_ms,
)
from queryable_app.serve.reads.point import ReplicaProgress
from queryable_app.serve.reads.scans import Bounds

T = TypeVar("T")

COVER: Final = "/internal/v1/cover"
ROWS: Final = "/internal/v1/rows"
KEYS: Final = "/internal/v1/keys"
COUNT: Final = "/internal/v1/count"

KEYS_BYTES_MAX: Final = 1 << 20
"""The bound of one answer with rows of keys: the row that goes beyond it is its last."""

Positions = Mapping[int, int]
"""Of partitions, how far their copies were when they were said to answer. A copy that is behind that when it is read is
another one: it was damaged and exchanged, or its node lost power."""

ParseAnswer = Callable[[dict[str, Any], list[RawRow]], T]
"""What an answer means. Raises anything for one that is none."""


class ReplicasLost(Exception):
    """Those that a node has said may answer: it does not answer any more."""

    def __init__(self, ordinal: int, why: object) -> None:
        super().__init__(f"node {ordinal}: {why}")
        self.ordinal = ordinal


@dataclass(frozen=True, slots=True)
class CoverAnswer:
    """How copies stand that may answer, and why the others may not; by partition."""

    standings: Mapping[int, ReplicaProgress]
    refused: Mapping[int, Failure]
    mismatched: frozenset[str] = frozenset()
    """The partitioners that the node knows not to be those of all producers."""


async def cover(
    peers: Peers, ordinal: int, partitions: Sequence[int], asked: ReadOptions, deadline: float
) -> CoverAnswer:
    """How the copies of these partitions stand there, once they have caught up as far as was asked for. Raises PeerAway."""
    body = {
        "partitions": list(partitions),
        "asked": asked_to_json(asked, remaining_ms(deadline, FRESHNESS_WAIT_SHARE)),
    }
    return await _ask(peers, ordinal, COVER, body, deadline, _covered, may_wait_for_freshness(asked))


async def rows(
    peers: Peers,
    ordinal: int,
    positions: Positions,
    bounds: Bounds,
    seconds: float,
    may_retry_elsewhere: bool,
) -> AsyncGenerator[list[RawRow], None]:
    """The rows of these partitions there, in key order; each batch within so many seconds."""
    while True:
        body = {
            "positions": _texts(positions),
            "start": _text(bounds.start),
            "stop": _text(bounds.stop),
            "reverse": bounds.reverse,
        }
        deadline = asyncio.get_running_loop().time() + seconds
        leaving = positions if may_retry_elsewhere else None
        batch, last = await _read(peers, ordinal, ROWS, body, deadline, _batch, leaving)
        if batch:
            yield batch
        if last:
            return
        bounds = bounds.behind(batch[-1][0])


async def keys(
    peers: Peers,
    ordinal: int,
    positions: Positions,
    keys: Mapping[int, Sequence[bytes]],
    deadline: float,
    may_retry_elsewhere: bool,
) -> AsyncGenerator[list[RawRow], None]:
    """The rows of the keys of these partitions there, in batches of about a megabyte."""
    wanted = [(partition, key) for partition in positions for key in keys[partition]]
    at_once = len(wanted)
    while wanted:
        texts: dict[str, list[str | None]] = {}
        for partition, key in wanted[:at_once]:
            texts.setdefault(str(partition), []).append(_text(key))
        asked = {partition: positions[int(partition)] for partition in texts}
        body = {"positions": asked, "keys": texts, "bytesMax": KEYS_BYTES_MAX}
        leaving = [int(partition) for partition in texts] if may_retry_elsewhere else None
        answered, batch = await _read(peers, ordinal, KEYS, body, deadline, _keys, leaving)
        yield batch
        if answered is None:  # a node of an earlier version answers all of them
            answered = at_once
        wanted, at_once = wanted[answered:], 2 * answered


async def count(
    peers: Peers,
    ordinal: int,
    positions: Positions,
    approximate: bool,
    deadline: float,
    may_retry_elsewhere: bool,
) -> int:
    body = {"positions": _texts(positions), "approximate": approximate}
    return await _read(
        peers,
        ordinal,
        COUNT,
        body,
        deadline,
        lambda head, _: int(head["count"]),
        positions if may_retry_elsewhere else None,
    )


async def _read(
    peers: Peers,
    ordinal: int,
    path: str,
    body: object,
    deadline: float,
    understand: ParseAnswer[T],
    leaving: Collection[int] | None,
) -> T:
    """`leaving`: the partitions that others must have for the node to be left when it comes into doubt."""
    unless_suspected = nullcontext() if leaving is None else peers.unless_suspected(ordinal, leaving)
    try:
        async with unless_suspected:
            return await _ask(peers, ordinal, path, body, deadline, understand)
    except PeerUnavailable as away:
        raise ReplicasLost(ordinal, away) from None


async def _ask(
    peers: Peers,
    ordinal: int,
    path: str,
    body: object,
    deadline: float,
    understand: ParseAnswer[T],
    may_wait_for_freshness: bool = True,
) -> T:
    text = json.dumps(body).encode()
    headers = b"%b%b: %d\r\n" % (peers.node_headers, DEADLINE_HEADER.encode(), remaining_ms(deadline))
    answer = await peers.request(
        ordinal, b"POST", path.encode(), headers, text, deadline, may_wait_for_freshness
    )
    if answer.status != 200:
        raise PeerUnavailable(f"it answered {answer.status}")
    return parse_answer(answer.body, understand)


def parse_answer(answer: bytes, understand: ParseAnswer[T]) -> T:
    """Raises PeerAway for what no node of this version says: others are asked as if it were not there."""
    try:
        return understand(*decode_rows(answer))
    except (PeerFrameError, LookupError, TypeError, ValueError, OverflowError) as error:
        raise PeerUnavailable(f"it answered something else than was asked: {error!r}") from None


def _covered(head: dict[str, Any], _: list[RawRow]) -> CoverAnswer:
    standings = [_standing(*said) for said in head["standings"]]
    refused = dict(_refused(said) for said in head["refused"])
    # A node of an earlier version does not say it.
    mismatched = frozenset(str(name) for name in head.get("contradicted", ()))
    return CoverAnswer({standing.partition: standing for standing in standings}, refused, mismatched)


def _standing(
    partition: Any, position: Any, role: Any, lag_records: Any, lag_ms: Any, complete: Any
) -> ReplicaProgress:
    return ReplicaProgress(
        int(partition), int(position), str(role), int(lag_records), int(lag_ms), bool(complete)
    )


def refusal_to_json(partition: int, failure: Failure) -> dict[str, Any]:
    return {
        "partition": partition,
        "reason": failure.reason.name,
        "detail": failure.detail,
        "advice": failure.advice,
        "retryAfterMs": failure.retry_after_ms,
    }


def _refused(raw: Mapping[str, Any]) -> tuple[int, Failure]:
    partition, reason, retry_after_ms = int(raw["partition"]), Reason[raw["reason"]], raw["retryAfterMs"]
    if reason not in REASONS_TO_TRY_ELSEWHERE:
        raise ValueError(f"{reason.name} is no reason not to cover a partition")
    return partition, Failure(
        reason,
        str(raw["detail"]),
        str(raw["advice"]),
        partition=partition,
        retry_after_ms=None if retry_after_ms is None else int(retry_after_ms),
    )


def _batch(head: dict[str, Any], rows: list[RawRow]) -> tuple[list[RawRow], bool]:
    last = bool(head["last"])
    if not rows and not last:
        raise ValueError("no rows, and more of them")
    return rows, last


def _keys(head: dict[str, Any], rows: list[RawRow]) -> tuple[int | None, list[RawRow]]:
    answered = head.get("answered")
    if answered is not None and int(answered) < 1:
        raise ValueError("no key is answered")
    return answered, rows


def _text(key: bytes | None) -> str | None:
    return None if key is None else b64encode(key).decode()


def _texts(positions: Positions) -> dict[str, int]:
    return {str(partition): position for partition, position in positions.items()}
