"""Write the records of a request to Kafka, within the bounds of `spec.read.writes`, and once for an Idempotency-Key.

Strategy: one node remembers a key, whichever node the client asks: the one that rendezvous hashing chooses among those that
answer. If that node is lost, another one takes over without its memory, and a repeated request may be written a second time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from hashlib import blake2b
from time import monotonic
from typing import Any, Final
from urllib.parse import quote

from starlette.requests import Request

from queryable_app.errors import Failure, Reason, invalid
from queryable_app.serve.api.access import certificate_line, key_access
from queryable_app.serve.api.forwarding import client_answer, is_forwarded
from queryable_app.serve.api.request import ARRIVED_AT, Parameters
from queryable_app.serve.kafka.producer import turn_of
from queryable_app.serve.kafka.remembered_writes import Record, digest_of
from queryable_app.serve.node import Node
from queryable_app.serve.peers.client import PeerTimeout, PeerUnavailable
from queryable_app.serve.peers.peers import TOKEN_REFUSED_STATUSES, remaining_ms
from queryable_app.wire.http_text import Answer

IDEMPOTENCY_HEADER: Final = "idempotency-key"
_KEY_CHARACTERS_MAX: Final = 255
_PASSED_ON: Final = ("authorization", "content-type", IDEMPOTENCY_HEADER)
_ANSWER_SHARE: Final = 0.9  # of the time that is left is the other node's, so that its answer arrives
_RETRY_MS: Final = 1000


def idempotency_key(request: Request) -> str | None:
    """Return the request's Idempotency-Key."""
    given = request.headers.getlist(IDEMPOTENCY_HEADER)
    if not given:
        return None
    key = given[0]
    if (
        len(given) > 1
        or not 1 <= len(key) <= _KEY_CHARACTERS_MAX
        or not key.isascii()
        or not key.isprintable()
    ):
        raise invalid("Idempotency-Key", f"is not one text of 1 to {_KEY_CHARACTERS_MAX} visible characters",
                      "send a UUID for each request, and the same one when you repeat it")  # fmt: skip
    return key


def other_owner(request: Request, node: Node, key: str) -> int | None:
    """Return the node that remembers this key, or None if it is this one."""
    if is_forwarded(request, node):
        return None
    here = node.settings.ordinal
    candidates = [here, *(each for each in node.peers.others() if each not in node.peers.suspected)]
    owner = max(candidates, key=lambda ordinal: blake2b(f"{ordinal} {key}".encode(), digest_size=8).digest())
    return None if owner == here else owner


async def pass_on(
    request: Request, values: Parameters, node: Node, owner: int, body: bytes, deadline_seconds: float
) -> Answer:
    """Return the answer of the node that remembers the request's key. It checks what the caller may write."""
    key_access(request).applied = True
    deadline = request.scope[ARRIVED_AT] + deadline_seconds
    query = [f"deadline-ms={remaining_ms(deadline, _ANSWER_SHARE)}"]
    query += [f"key-encoding={quote(each, safe='')}" for each in values.get("key-encoding", [])]
    target = request.scope["raw_path"] + b"?" + "&".join(query).encode()
    passed_on = [(name, request.headers[name]) for name in _PASSED_ON if name in request.headers]
    lines = b"".join(f"{name}: {value}\r\n".encode("latin-1") for name, value in passed_on)
    lines = node.peers.forwarded_line + lines + certificate_line(request)
    try:
        response = await node.peers.request(owner, request.method.encode(), target, lines, body, deadline)
    except PeerTimeout:
        raise _unanswered(Reason.DEADLINE_EXCEEDED, node, owner) from None
    except PeerUnavailable:
        raise _unanswered(Reason.NOT_AVAILABLE, node, owner) from None
    refuses_caller = any(name == b"www-authenticate" for name, _ in response.headers)
    if response.status in TOKEN_REFUSED_STATUSES and not refuses_caller:
        raise _unanswered(Reason.NOT_AVAILABLE, node, owner)
    return client_answer(response)


def require_rate(request: Request, node: Node, size: int) -> None:
    """Refuse a request whose caller writes more bytes than the resource allows. The node that the caller asked counts."""
    rate = node.read_settings.writes.bytes_per_second_max
    if rate is None or is_forwarded(request, node):
        return
    address = request.client.host if request.client is not None else ""
    caller = key_access(request).subject or address
    wait = node.write_rates.take(caller, size, rate, monotonic())
    if wait > 0:
        raise Failure(
            Reason.OVERLOADED,
            f"this caller writes more than {rate} bytes/s (spec.read.writes.maxBytesPerSecond)",
            "write more slowly, or ask the owner of the view for a higher bound",
            retry_after_ms=max(1, int(wait * 1000)),
        )


def require_record_sizes(node: Node, records: Sequence[Record]) -> None:
    """Refuse a record that is larger than the resource allows."""
    bound = node.read_settings.writes.record_bytes_max
    if bound is None:
        return
    for index, (key, value) in enumerate(records):
        size = len(key) + len(value or b"")
        if size > bound:
            raise Failure(
                Reason.TOO_LARGE,
                f"record {index}: its key and value have {size} bytes, and this view takes at most {bound} "
                "(spec.read.writes.maxRecordBytes)",
                "send a smaller value",
            )


async def write(
    node: Node, records: Sequence[Record], partitions: Sequence[int], deadline_seconds: float
) -> list[dict[str, Any]]:
    """Write all records and return where each is, or raise a Failure that says how many were written."""

    async def send(index: int, record: Record, partition: int) -> int:
        await turn_of(index)
        return await node.producer.send(*record, partition, deadline_seconds)

    sending = (send(index, *each) for index, each in enumerate(zip(records, partitions, strict=True)))
    return _acknowledged(await asyncio.gather(*sending, return_exceptions=True), partitions)


async def write_once(
    node: Node,
    method: str,
    key: str,
    records: Sequence[Record],
    partitions: Sequence[int],
    deadline_seconds: float,
) -> list[dict[str, Any]]:
    """Write the records that a request with the same Idempotency-Key has not written, and return where each is.

    One record goes to all of the partitions, several records to one each.
    """
    window = node.read_settings.writes.window_ms / 1000
    digest = digest_of(method, records)
    remembered = node.remembered_writes.write(key, digest, partitions, window, monotonic())
    if len(records) == 1:
        records = [records[0]] * len(remembered.partitions)
    outcomes = await node.remembered_writes.outcomes(remembered, records, deadline_seconds)
    return _acknowledged(outcomes, remembered.partitions)


def _acknowledged(outcomes: Sequence[int | BaseException], partitions: Sequence[int]) -> list[dict[str, Any]]:
    for index, outcome in enumerate(outcomes):
        if isinstance(outcome, BaseException):
            if isinstance(outcome, Failure) and len(outcomes) > 1:
                written = sum(isinstance(each, int) for each in outcomes)
                outcome.detail = (
                    f"record {index}: {outcome.detail}; {written} of {len(outcomes)} were written"
                )
            raise outcome
    return [
        {"partition": partition, "offset": offset, "position": f"{partition}:{offset + 1}"}
        for partition, offset in zip(partitions, outcomes, strict=True)
        if isinstance(offset, int)
    ]


def _unanswered(reason: Reason, node: Node, owner: int) -> Failure:
    return Failure(
        reason,
        f"{node.peers.address(owner)}, which remembers this Idempotency-Key, has not answered; the records may be written",
        "send the request again with the same Idempotency-Key",
        retry_after_ms=_RETRY_MS,
    )
