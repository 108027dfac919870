"""`POST /v1/records` and `DELETE /v1/records/{key}`: writes to the topic, never to the stores.

The answer is the position that a reader asks for to see the write (`min-position`), after Kafka's acknowledgement.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from queryable_app.errors import Failure, Reason, invalid, shown
from queryable_app.freshness import DEADLINE_MS_MAX
from queryable_app.http_text import choice, json_answer, whole_number
from queryable_app.partitioners import ALGORITHMS, SCATTER, partition_for
from queryable_app.serde import value_from_json
from queryable_app.serve.api.answers import RECORDS_BODY, WRITTEN
from queryable_app.serve.api.parameters import parameters
from queryable_app.serve.api.request import Values, json_body, key_of, respond, values_of
from queryable_app.serve.node import Node
from queryable_app.serve.producer import DEADLINE_SECONDS
from queryable_app.serve.reads import Reads

RECORDS_MAX: Final = 1000
_OPTIONS: Final = ("deadline-ms",)

Record = tuple[bytes, bytes | None]
"""Record key and value; None deletes."""


def routes(node: Node, reads: Reads) -> APIRouter:
    router = APIRouter(tags=["writes"])

    @router.post(
        "/v1/records", openapi_extra=parameters(*_OPTIONS, "key-encoding") | RECORDS_BODY, responses=WRITTEN
    )
    async def produce(request: Request) -> Response:
        """Send `{"key", "value"}`, or an array of them, to the topic. Records of one key keep their order."""
        _require_allowed(node)
        values = values_of(request, _OPTIONS, "key-encoding")
        body = await json_body(request, node)
        many = isinstance(body, list)
        records = [_record(item, values, node) for item in _items(body)]
        sent = [(key, value, _partition(reads, key)) for key, value in records]
        acknowledged = await _send(node, sent, _deadline_seconds(values))
        return respond(json_answer(acknowledged if many else acknowledged[0], reads.identity))

    @router.delete(
        "/v1/records/{key}",
        openapi_extra=parameters(*_OPTIONS, "key-encoding", path="key"),
        responses=WRITTEN,
    )
    async def delete(request: Request) -> Response:
        """Send a tombstone for the key. One that several partitions hold gets one in each, and a list is answered."""
        _require_allowed(node)
        values = values_of(request, _OPTIONS, "key-encoding")
        record_key = key_of(request, values, node.codec)
        partitions = _holding(reads, record_key)
        sent: list[tuple[bytes, bytes | None, int]] = [(record_key, None, p) for p in partitions]
        acknowledged = await _send(node, sent, _deadline_seconds(values))
        return respond(json_answer(acknowledged if len(sent) > 1 else acknowledged[0], reads.identity))

    return router


def _require_allowed(node: Node) -> None:
    if not node.read.ingest:
        raise Failure(
            Reason.FORBIDDEN,
            "this view does not take records over HTTP",
            "produce to the topic itself, or set spec.read.ingest: true",
        )


def _deadline_seconds(values: Values) -> float:
    given = whole_number(values, "deadline-ms", 1, DEADLINE_MS_MAX)
    return DEADLINE_SECONDS if given is None else given / 1000


def _items(body: Any) -> list[Any]:
    items = body if isinstance(body, list) else [body]
    if not items:
        raise invalid("body", "is an empty list", 'send at least one {"key": .., "value": ..}')
    if len(items) > RECORDS_MAX:
        raise Failure(
            Reason.TOO_LARGE,
            f"body: {len(items)} records, more than {RECORDS_MAX}",
            "split them over several requests",
        )
    return items


def _record(item: Any, values: Values, node: Node) -> Record:
    advice = 'write each record as {"key": .., "value": ..}'
    if not isinstance(item, dict):
        raise invalid("body", f"{shown(item)} is no record", advice)
    for name in item:
        if name not in ("key", "value"):
            raise invalid(shown(name), "is no field of a record", advice)
    if "key" not in item or "value" not in item:
        raise invalid("value" if "key" in item else "key", "is missing", f"{advice}; DELETE takes a key away")
    key = item["key"]
    if choice(values, "key-encoding", ("text", "base64url")) == "text":
        record_key = node.codec.from_json(key)
    elif isinstance(key, str):
        record_key = node.codec.from_base64url(key)
    else:
        raise invalid("key", f"{shown(key)} is not text", "write the key as base64url in a JSON string")
    # What a producer sends is in the topic's own format; the view's SQL comes after.
    return record_key, value_from_json(item["value"], node.spec.value_format)


def _partition(reads: Reads, record_key: bytes) -> int:
    """Where producers send the key. When they do not agree, where the Java client would: the newest row wins anywhere."""
    algorithm = reads.copies.algorithm
    return partition_for(
        record_key, ALGORITHMS[0] if algorithm == SCATTER else algorithm, reads.copies.partitions
    )


def _holding(reads: Reads, record_key: bytes) -> Sequence[int]:
    """The partitions with a row of the key; a tombstone in one of them alone would be forgotten before the older rows."""
    if reads.copies.algorithm != SCATTER:
        return (_partition(reads, record_key),)
    disk_key = reads.node.codec.to_disk(record_key)
    here = reads.copies.by_partition
    # Of partitions on other nodes, and of copies that are being built, it is not known: a tombstone for nothing does no harm.
    holding = [
        partition
        for partition in range(reads.copies.partitions)
        if (copy := here.get(partition)) is None or not copy.complete or copy.store.get(disk_key) is not None
    ]
    return holding or (_partition(reads, record_key),)


async def _send(
    node: Node, sent: Sequence[tuple[bytes, bytes | None, int]], deadline_seconds: float
) -> list[dict[str, Any]]:
    """All of them, or a failure that says how many were."""
    sending = (node.producer.send(key, value, partition, deadline_seconds) for key, value, partition in sent)
    outcomes = await asyncio.gather(*sending, return_exceptions=True)
    for index, outcome in enumerate(outcomes):
        if isinstance(outcome, BaseException):
            if isinstance(outcome, Failure) and len(sent) > 1:
                written = sum(isinstance(o, int) for o in outcomes)
                outcome.detail = f"record {index}: {outcome.detail}; {written} of {len(sent)} were written"
            raise outcome
    return [
        {"partition": partition, "offset": offset, "position": f"{partition}:{offset + 1}"}
        for (_, _, partition), offset in zip(sent, outcomes, strict=True)
        if isinstance(offset, int)
    ]
