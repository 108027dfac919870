"""Serve `POST /v1/records` and `DELETE /v1/records/{key}`: write to the topic, never to the stores.

The answer comes after Kafka's acknowledgement. It has the position that a read names (`min-position`) to see the write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from queryable_app.errors import Failure, Reason, invalid, shown
from queryable_app.policy.freshness import DEADLINE_MS_MAX
from queryable_app.serve.api.openapi import RECORDS_BODY, WRITTEN, openapi_parameters
from queryable_app.serve.api.request import (
    Parameters,
    invalid_json,
    key_in_path,
    key_parser,
    parse_parameters,
    read_body,
    require_few_values,
    to_response,
)
from queryable_app.serve.kafka.producer import DEADLINE_SECONDS
from queryable_app.serve.node import Node
from queryable_app.serve.reads.point import Reads
from queryable_app.wire.http_text import json_answer, whole_number
from queryable_app.wire.json_text import BadJson, JsonText, read_array, read_document, read_json, read_object
from queryable_app.wire.serde import value_from_json

RECORDS_MAX: Final = 1000
_OPTIONS: Final = ("deadline-ms",)
_ADVICE: Final = 'write each record as {"key": .., "value": ..}'

_Item = dict[str, JsonText]
Record = tuple[bytes, bytes | None]
"""Record key and value. A value of None deletes the key."""


def routes(node: Node, reads: Reads) -> APIRouter:
    router = APIRouter(tags=["writes"])

    @router.post(
        "/v1/records",
        openapi_extra=openapi_parameters(*_OPTIONS, "key-encoding") | RECORDS_BODY,
        responses=WRITTEN,
    )
    async def produce(request: Request) -> Response:
        """Write `{"key", "value"}`, or an array of them, to the topic. Records of one key keep their order."""
        _require_writes_enabled(node)
        values = parse_parameters(request, _OPTIONS, "key-encoding")
        # No local variable keeps the body or its JSON values alive while Kafka acknowledges.
        records, many = _parse_body(await read_body(request), values, node)
        sent = [(key, value, reads.partitioning.partition_for_write(key)) for key, value in records]
        acknowledged = await _send(node, sent, _deadline_seconds(values))
        return to_response(json_answer(acknowledged if many else acknowledged[0], reads.identity))

    @router.delete(
        "/v1/records/{key}",
        openapi_extra=openapi_parameters(*_OPTIONS, "key-encoding", path="key"),
        responses=WRITTEN,
    )
    async def delete(request: Request) -> Response:
        """Write a tombstone for the key. If several partitions may have the key, write one to each, and answer a list."""
        _require_writes_enabled(node)
        values = parse_parameters(request, _OPTIONS, "key-encoding")
        record_key = key_in_path(request, values, node.codec)
        partitions = _partitions_with_row(reads, record_key)
        sent: list[tuple[bytes, bytes | None, int]] = [(record_key, None, p) for p in partitions]
        acknowledged = await _send(node, sent, _deadline_seconds(values))
        return to_response(json_answer(acknowledged if len(sent) > 1 else acknowledged[0], reads.identity))

    return router


def _require_writes_enabled(node: Node) -> None:
    if not node.read_settings.ingest:
        raise Failure(
            Reason.FORBIDDEN,
            "this view does not accept records over HTTP",
            "produce to the topic, or set spec.read.ingest: true",
        )


def _deadline_seconds(values: Parameters) -> float:
    given = whole_number(values, "deadline-ms", 1, DEADLINE_MS_MAX)
    return DEADLINE_SECONDS if given is None else given / 1000


def _parse_body(body: bytes, values: Parameters, node: Node) -> tuple[list[Record], bool]:
    """Return the records in a body, and whether they are in an array."""
    require_few_values(body)
    items, many = _items(body)
    parse_key = key_parser(values, node.codec, "key")
    return [_record(item, parse_key, node) for item in items], many


def _items(body: bytes) -> tuple[list[_Item], bool]:
    """Return the members of each record, and whether they are in an array. A value keeps its text, which is written as it is."""
    found: list[_Item] = []

    def item(text: str, at: int) -> tuple[_Item, int]:
        if len(found) == RECORDS_MAX:
            raise Failure(
                Reason.TOO_LARGE, f"body: more than {RECORDS_MAX} records", "split them over several requests"
            )
        if text[at : at + 1] != "{":
            raise invalid("body", f"{shown(read_json(text, at)[0].value)} is no record", _ADVICE)
        members, end = read_object(text, at, _member)
        found.append(members)
        return members, end

    def one_or_many(text: str, at: int) -> tuple[bool, int]:
        many = text[at : at + 1] == "["
        return many, (read_array(text, at, item) if many else item(text, at))[1]

    try:
        many = read_document(body, one_or_many)
    except BadJson as bad:
        raise invalid_json("body", bad) from None
    if not found:
        raise invalid("body", "is an empty list", 'send at least one {"key": .., "value": ..}')
    return found, many


def _member(name: str, text: str, at: int) -> tuple[JsonText, int]:
    if name not in ("key", "value"):
        raise invalid(shown(name), "is no field of a record", _ADVICE)
    try:
        return read_json(text, at)
    except BadJson as bad:
        raise invalid_json(name, bad) from None


def _record(item: _Item, parse_key: Callable[[object], bytes], node: Node) -> Record:
    if "key" not in item or "value" not in item:
        raise invalid(
            "value" if "key" in item else "key", "is missing", f"{_ADVICE}; to delete a key, send DELETE"
        )
    # A producer sends the topic's own format; the view's SQL runs after that.
    return parse_key(item["key"].value), value_from_json(item["value"], node.spec.value_format)


def _partitions_with_row(reads: Reads, record_key: bytes) -> Sequence[int]:
    """Return the partitions with a row of the key. A tombstone in only one of them would expire before the older rows."""
    partitions = reads.partitioning.partitions_of(record_key)
    if not reads.partitioning.scattered:
        return partitions
    disk_key = reads.node.codec.to_disk(record_key)
    here = reads.replicas.by_partition
    # Partitions on other nodes and hydrating replicas may have the key: a tombstone for no row does no harm.
    with_row = [
        partition
        for partition in partitions
        if (replica := here.get(partition)) is None
        or not replica.complete
        or replica.store.get(disk_key) is not None
    ]
    return with_row or (reads.partitioning.partition_for_write(record_key),)


async def _send(
    node: Node, sent: Sequence[tuple[bytes, bytes | None, int]], deadline_seconds: float
) -> list[dict[str, Any]]:
    """Write all records, or raise a Failure that says how many were written."""
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
