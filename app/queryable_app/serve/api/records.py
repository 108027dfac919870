"""Serve `POST /v1/records` and `DELETE /v1/records/{key}`: write to the topic, never to the stores.

The answer comes after Kafka's acknowledgement. It has the position that a read names (`min-position`) to see the write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from queryable_app.errors import Failure, Reason, invalid, shown
from queryable_app.policy.freshness import DEADLINE_MS_MAX
from queryable_app.serve.api import writes
from queryable_app.serve.api.access import key_access
from queryable_app.serve.api.openapi import RECORDS_BODY, WRITTEN, openapi_parameters
from queryable_app.serve.api.request import (
    VALUES_MAX,
    Parameters,
    checked_text,
    invalid_json,
    key_in_path,
    key_parser,
    parse_body,
    parse_parameters,
    read_body,
    to_response,
)
from queryable_app.serve.base.step_budget import ITEM_BYTES, StepBudget
from queryable_app.serve.kafka.producer import DEADLINE_SECONDS
from queryable_app.serve.kafka.remembered_writes import Record
from queryable_app.serve.node import Node
from queryable_app.serve.reads.partitions_in_steps import partitions_in_steps
from queryable_app.serve.reads.point import Reads
from queryable_app.wire.http_text import json_answer, whole_number
from queryable_app.wire.json_text import (
    DEPTH_MAX,
    BadJson,
    Elements,
    JsonText,
    read_object,
    read_value,
    require_end,
    skip_space,
    too_deep,
)
from queryable_app.wire.serde import value_from_json

RECORDS_MAX: Final = 1000
_OPTIONS: Final = ("deadline-ms",)
_ADVICE: Final = 'write each record as {"key": .., "value": ..}'


class _Member(NamedTuple):
    """A member of a record: its value, and where its text is in the body."""

    value: Any
    start: int
    end: int


_Item = dict[str, _Member]


def routes(node: Node, reads: Reads) -> APIRouter:
    router = APIRouter(tags=["writes"])

    @router.post(
        "/v1/records",
        openapi_extra=openapi_parameters(*_OPTIONS, "key-encoding", "Idempotency-Key") | RECORDS_BODY,
        responses=WRITTEN,
    )
    async def produce(request: Request) -> Response:
        """Write `{"key", "value"}`, or an array of them, to the topic. Records of one key keep their order."""
        _require_writes_enabled(node)
        values = parse_parameters(request, _OPTIONS, "key-encoding")
        deadline_seconds, once = _deadline_seconds(values), writes.idempotency_key(request)
        if once is not None and (owner := writes.other_owner(request, node, once)) is not None:
            body = await read_body(request)
            writes.require_rate(request, node, len(body))
            return to_response(await writes.pass_on(request, values, node, owner, body, deadline_seconds))

        async def parse(body: bytes, steps: StepBudget) -> tuple[list[Record], bool]:
            writes.require_rate(request, node, len(body))
            return await parse_records(body, values, node, steps)

        # No local variable keeps the body or its JSON values alive while Kafka acknowledges.
        records, many = await parse_body(request, node, parse)
        writes.require_record_sizes(node, records)
        keys = [key for key, _ in records]
        once = _authorize(request, node, "write", keys, once)
        placed = await partitions_in_steps(keys, reads.partitioning.for_writes, StepBudget())
        partitions = [partition for partition in placed if partition is not None]
        assert len(partitions) == len(records)
        acknowledged = (
            await writes.write(node, records, partitions, deadline_seconds)
            if once is None
            else await writes.write_once(node, "POST", once, records, partitions, deadline_seconds)
        )
        return to_response(json_answer(acknowledged if many else acknowledged[0], reads.identity))

    @router.delete(
        "/v1/records/{key}",
        openapi_extra=openapi_parameters(*_OPTIONS, "key-encoding", "Idempotency-Key", path="key"),
        responses=WRITTEN,
    )
    async def delete(request: Request) -> Response:
        """Write a tombstone for the key. If several partitions may have the key, write one to each, and answer a list."""
        _require_writes_enabled(node)
        values = parse_parameters(request, _OPTIONS, "key-encoding")
        record_key = key_in_path(request, values, node.codec)
        deadline_seconds, once = _deadline_seconds(values), writes.idempotency_key(request)
        writes.require_rate(request, node, len(record_key))
        if once is not None and (owner := writes.other_owner(request, node, once)) is not None:
            return to_response(await writes.pass_on(request, values, node, owner, b"", deadline_seconds))
        once = _authorize(request, node, "delete", [record_key], once)
        partitions, tombstone = _partitions_with_row(reads, record_key), (record_key, None)
        acknowledged = (
            await writes.write(node, [tombstone] * len(partitions), partitions, deadline_seconds)
            if once is None
            else await writes.write_once(node, "DELETE", once, [tombstone], partitions, deadline_seconds)
        )
        many = len(acknowledged) > 1
        return to_response(json_answer(acknowledged if many else acknowledged[0], reads.identity))

    return router


def _authorize(
    request: Request, node: Node, operation: str, keys: Sequence[bytes], once: str | None
) -> str | None:
    """Refuse a write of keys that the caller may not write, and log an allowed one.

    Return the Idempotency-Key under which it is remembered: two callers may choose the same one."""
    if node.authenticator is None:
        return once
    access = key_access(request)
    access.require(keys)
    node.audit.wrote(operation, access.subject, keys)
    return None if once is None else f"{access.subject}\n{once}"


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


async def parse_records(
    body: bytes, values: Parameters, node: Node, steps: StepBudget
) -> tuple[list[Record], bool]:
    """Return the records in a body, and whether they are in an array."""
    text, depth, _ = await checked_text(body, VALUES_MAX, steps)
    items, many = await _items(text, depth, steps)
    parse_key = key_parser(values, node.codec, "key")
    records: list[Record] = []
    for item in items:
        key, value = _record(item, text, parse_key, node)
        records.append((key, value))
        await steps.spend(len(key) + len(value or b"") + ITEM_BYTES)
    return records, many


async def _items(text: str, depth: int, steps: StepBudget) -> tuple[list[_Item], bool]:
    """Return the members of each record, and whether they are in an array."""
    at = skip_space(text, 0)
    many = text[at : at + 1] == "["
    items: list[_Item] = []
    try:
        if many:
            elements = Elements(text, at, _item)
            for item in elements:
                if len(items) == RECORDS_MAX:
                    raise _too_many()
                items.append(item)
                await steps.spend(sum([member.end - member.start for member in item.values()]) + ITEM_BYTES)
            end = elements.end
        else:
            item, end = _item(text, at)
            items.append(item)
            await steps.spend(end - at)
        require_end(text, end)
    except BadJson as bad:
        raise invalid_json("body", bad) from None
    if depth > DEPTH_MAX + (2 if many else 1):  # of the value, and the record and the array around it
        raise invalid_json("value", too_deep())
    if not items:
        raise invalid("body", "is an empty list", 'send at least one {"key": .., "value": ..}')
    return items, many


def _item(text: str, at: int) -> tuple[_Item, int]:
    if text[at : at + 1] != "{":
        raise invalid("body", f"{shown(read_value(text, at)[0])} is no record", _ADVICE)
    return read_object(text, at, _member)


def _member(name: str, text: str, at: int) -> tuple[_Member, int]:
    if name not in ("key", "value"):
        raise invalid(shown(name), "is no field of a record", _ADVICE)
    try:
        value, end = read_value(text, at)
    except BadJson as bad:
        raise invalid_json(name, bad) from None
    return _Member(value, at, end), end


def _record(item: _Item, text: str, parse_key: Callable[[object], bytes], node: Node) -> Record:
    if "key" not in item or "value" not in item:
        raise invalid(
            "value" if "key" in item else "key", "is missing", f"{_ADVICE}; to delete a key, send DELETE"
        )
    key, value = item["key"], item["value"]
    format = node.spec.value_format  # a producer sends the topic's own format; the view's SQL runs after that
    raw = (
        text[value.start : value.end].encode() if format in ("json", "avro") else b""
    )  # a JSON value is written as it is
    return parse_key(key.value), value_from_json(JsonText(value.value, raw), format, node.encode_record)


def _too_many() -> Failure:
    return Failure(
        Reason.TOO_LARGE, f"body: more than {RECORDS_MAX} records", "split them over several requests"
    )


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
    return with_row or reads.partitioning.for_writes.partitions_of(record_key)
