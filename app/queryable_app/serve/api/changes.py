"""Serve the change feed: `GET /v1/changes`, as a stream of events or, page by page, as NDJSON."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from queryable_app.aggregates.window_keys import first_key, group_prefix, split_window_key
from queryable_app.errors import Failure, Reason, invalid
from queryable_app.serve.api.access import KeyAccess, key_access
from queryable_app.serve.api.guard import CHANGES_PATH as PATH
from queryable_app.serve.api.openapi import CHANGES, CHANGES_FROM, openapi_parameters
from queryable_app.serve.api.request import (
    Parameters,
    accept_header,
    key_parameter,
    keys_are_base64url,
    list_header,
    parse_parameters,
    to_response,
)
from queryable_app.serve.api.responses import RowStream, unless_disconnected
from queryable_app.serve.base.admission import overloaded
from queryable_app.serve.base.peer_frames import RawRow
from queryable_app.serve.node import Node
from queryable_app.serve.reads.change_events import (
    HEARTBEAT,
    ToObjects,
    change_events,
    compacted_event,
    compacted_object,
    id_event,
    is_deleted,
    to_objects,
    windows_to_objects,
)
from queryable_app.serve.reads.change_feed import ChangeFeed, Compacted
from queryable_app.serve.reads.change_sources import ChangeSources
from queryable_app.serve.reads.change_tail import ChangeTail, Chunk
from queryable_app.serve.reads.log_ends import LogEnds
from queryable_app.serve.reads.point import Reads
from queryable_app.serve.reads.row_filter import row_filter
from queryable_app.serve.reads.row_selection import SELECTION, RowSelection, parse_row_selection
from queryable_app.serve.reads.window_rows import window_renderer
from queryable_app.wire.change_log import Mark
from queryable_app.wire.change_positions import BadPositions, decode_positions, encode_positions
from queryable_app.wire.http_text import (
    EVENTS,
    NDJSON,
    as_bytes,
    body_answer,
    negotiate,
    single,
    whole_number,
)

_PARAMETERS: Final = ("key", "prefix", "key-encoding", *SELECTION, "from", "wait-ms")
_HEARTBEAT_SECONDS: Final = 15.0
_RETRY_MS: Final = 1000
WAIT_MS_MAX: Final = 60_000
_WAIT_MS: Final = 10_000
_PAGE_ROWS: Final = 1000
_CATCH_UP_SECONDS: Final = 2.0
"""How long a page may take beyond its wait while the client catches up."""
_STREAM_HEADERS: Final = b"cache-control: no-store\r\nx-accel-buffering: no\r\n"
_NO_CHANGES: Final = Failure(
    Reason.NO_SUCH_RESOURCE,
    "this view keeps no changes",
    "set spec.view.changes: true, which makes a new revision, or poll the keys",
)

Keep = Callable[[RawRow], bool]


def failures_elsewhere(has_changes: bool) -> Mapping[str, Failure]:
    """Return what a request of the feed gets from a view that has none; by the path's beginning."""
    return {} if has_changes else {PATH: _NO_CHANGES}


class _Wanted(NamedTuple):
    """What a client follows."""

    partitions: Collection[int]
    keep: Keep | None
    """None: every row."""
    objects: ToObjects | None
    """Writes its rows. None: as for every client."""


def routes(node: Node, reads: Reads) -> APIRouter:
    feeds = _Feeds(reads)
    router = APIRouter(tags=["reads"])

    @router.get(PATH, openapi_extra=openapi_parameters(*_PARAMETERS, about=CHANGES_FROM), responses=CHANGES)
    async def changes(request: Request) -> Response:
        """Follow the changes of all keys, of one key, or of the keys with a prefix.

        A stream has an id after each group of events. Send the last one as `Last-Event-ID`, to any node, to go on from there."""
        return await feeds.respond(request)

    return router


class _Feeds:
    """Answer the requests of one node."""

    def __init__(self, reads: Reads) -> None:
        self._reads = reads
        self._node = reads.node
        self._counters = reads.node.counters
        self._topic = reads.node.spec.topic
        self._sources = ChangeSources(reads)
        self._ends = LogEnds(reads)
        self._tail = ChangeTail(self._sources, self._ends)
        self._objects = _to_objects(reads.node, RowSelection())
        self._encoded: tuple[Sequence[Mark], str] = (), ""
        """The marks of the client that was answered last, and their id."""
        reads.node.listeners.append(self._tail.wake)

    async def respond(self, request: Request) -> Response:
        values = parse_parameters(request, (), *_PARAMETERS)
        form = negotiate(accept_header(request), (EVENTS, NDJSON))
        wanted = self._wanted(values, key_access(request))
        begin = list_header(request, "last-event-id") or single(values, "from") or "latest"
        given = self._given_marks(begin)
        wait_ms = whole_number(values, "wait-ms", 0, WAIT_MS_MAX)
        if form == EVENTS and wait_ms is not None:
            raise invalid("wait-ms", "is for pages", "send Accept: application/x-ndjson, or leave it out")
        self._require_room()
        latest = self._tail.positions if self._tail.followed else await self._ends.latest()
        marks = [Mark(position) for position in latest] if given is None else given
        if given is not None and (beyond := await self._beyond(given)):
            raise _replaced(beyond)
        if form == NDJSON:
            wait_seconds = (_WAIT_MS if wait_ms is None else wait_ms) / 1000
            async with unless_disconnected(request.receive):
                return await self._page(latest, marks, wanted, wait_seconds)
        return RowStream(self._events(latest, marks, wanted), _STREAM_HEADERS + self._reads.identity, EVENTS)

    def _wanted(self, values: Parameters, access: KeyAccess) -> _Wanted:
        node, codec = self._node, self._node.codec
        key, prefix = key_parameter(values, "key", codec), single(values, "prefix")
        partitions: Collection[int] = range(self._reads.replicas.partitions)
        tests: list[Keep] = []
        if key is not None and prefix is not None:
            raise invalid("prefix", "is given beside key", "send one of them")
        if key is not None:
            partitions = self._reads.partitioning.partitions_of(codec.to_record(key))
            tests.append(_has_key(node, key))
        if prefix is not None:
            if codec.width:
                raise invalid("prefix", f"{codec.format} keys are numbers", "follow one key, or all of them")
            head = codec.from_base64url(prefix) if keys_are_base64url(values) else as_bytes(prefix)
            start = head if node.windows is None else group_prefix(head)
            tests.append(lambda row: row[0].startswith(start))
        access.applied = True
        if access.limited:  # such keys are the same on the disk and in records
            tests.append(lambda row: access.allows(_key_of(node, row[0])))
        selection = parse_row_selection(values)
        rows = row_filter(node, selection.where)
        if rows is not None:
            tests.append(lambda row: is_deleted(row) or rows.matches(row[2], 0))
        keep: Keep | None = (lambda row: all(test(row) for test in tests)) if tests else None
        objects = _to_objects(node, selection) if selection.fields else None
        return _Wanted(partitions, keep, objects)

    def _given_marks(self, begin: str) -> Sequence[Mark] | None:
        """Return where to begin; None: at the latest changes."""
        partitions = self._reads.replicas.partitions
        if begin == "latest":
            return None
        if begin == "start":
            return [Mark(0)] * partitions
        try:
            marks = decode_positions(begin, self._topic)
        except BadPositions as bad:
            advice = "send the id of an event unchanged, or from=latest, or from=start for all rows first"
            raise invalid("Last-Event-ID or from", str(bad), advice) from None
        # The topic may have more partitions than when the id was made.
        return [*marks, *[Mark(0)] * (partitions - len(marks))][:partitions]

    async def _beyond(self, marks: Sequence[Mark]) -> Mapping[int, int]:
        return await self._ends.beyond([mark.position for mark in marks])

    def _require_room(self) -> None:
        """Refuse one more client: each keeps its connection."""
        limit = max(1, self._node.connections_max // 2)
        if self._tail.clients >= limit:
            raise overloaded(f"the node has {limit} clients of its change feed")

    def _id(self, feed: ChangeFeed) -> str:
        """Return where the client continues. Most clients continue at the same place."""
        marks = feed.marks
        if marks != self._encoded[0]:
            self._encoded = marks, encode_positions(marks, self._topic)
        return self._encoded[1]

    async def _page(
        self, latest: Sequence[int], marks: Sequence[Mark], wanted: _Wanted, wait_seconds: float
    ) -> Response:
        time = asyncio.get_running_loop().time
        deadline = time() + wait_seconds
        lines: list[bytes] = []
        async with self._used(latest):
            feed = ChangeFeed(self._tail, self._sources, marks, wanted.partitions)
            while len(lines) < _PAGE_ROWS and not self._node.draining:
                # What is in the ring is told soon; a wait that ends before would be repeated at once.
                until = deadline if feed.caught_up else deadline + _CATCH_UP_SECONDS
                for each in await feed.next(until):
                    lines += self._lines(each, wanted)
                if feed.caught_up and (lines or time() >= deadline):
                    break
                if time() >= deadline + _CATCH_UP_SECONDS:
                    if not lines:
                        raise _unreadable()
                    break
        lines.append(b'{"next":"%b"}' % self._id(feed).encode())
        return to_response(body_answer(b"\n".join(lines) + b"\n", NDJSON, self._reads.identity))

    @asynccontextmanager
    async def _used(self, latest: Sequence[int]) -> AsyncIterator[None]:
        """Follow the changes for one more client."""
        async with self._tail.used(latest):
            self._counters.change_clients += 1
            try:
                yield
            finally:
                self._counters.change_clients -= 1

    def _lines(self, each: Chunk | Compacted, wanted: _Wanted) -> list[bytes]:
        """Return what a client gets of a chunk, and count it."""
        if isinstance(each, Compacted):
            self._counters.changes_compacted += 1
            return [compacted_object(each)]
        rows = filter(wanted.keep, each.rows) if wanted.keep else each.rows
        lines = (wanted.objects or self._objects)(rows)
        self._counters.changes_sent += len(lines)
        return lines

    async def _events(
        self, latest: Sequence[int], marks: Sequence[Mark], wanted: _Wanted
    ) -> AsyncGenerator[bytes, None]:
        time = asyncio.get_running_loop().time
        async with self._used(latest):
            feed = ChangeFeed(self._tail, self._sources, marks, wanted.partitions)
            yield b"retry: %d\n" % _RETRY_MS + id_event(self._id(feed))
            heartbeat_at = time() + _HEARTBEAT_SECONDS
            while not self._node.draining:
                batch = await feed.next(heartbeat_at)
                text = b"".join([self._text(each, wanted) for each in batch])
                if text:
                    yield text + id_event(self._id(feed))
                    heartbeat_at = time() + _HEARTBEAT_SECONDS
                elif time() >= heartbeat_at:
                    if await self._beyond(feed.marks):
                        return  # the client sends its id again, and is told why it cannot go on
                    yield HEARTBEAT + id_event(self._id(feed))
                    heartbeat_at = time() + _HEARTBEAT_SECONDS

    def _text(self, each: Chunk | Compacted, wanted: _Wanted) -> bytes:
        if isinstance(each, Compacted):
            self._counters.changes_compacted += 1
            return compacted_event(each)
        if wanted.keep or wanted.objects:
            return change_events(self._lines(each, wanted))
        if each.text is None:
            each.text = change_events(self._objects(each.rows))
        self._counters.changes_sent += len(each.rows)
        return each.text


def _to_objects(node: Node, selection: RowSelection) -> ToObjects:
    spec = node.spec.aggregate
    if spec is None or node.windows is None:
        return to_objects(node.codec, selection.render(node.render))
    whole = window_renderer(spec, node.windows)
    return windows_to_objects(node.codec, selection.render(whole) or whole, node.windows)


def _has_key(node: Node, key: bytes) -> Keep:
    """Return the function that tells whether a row is of this key."""
    if node.windows is None:
        return lambda row: row[0] == key
    start = first_key(key)
    return lambda row: row[0].startswith(start)


def _key_of(node: Node, stored_key: bytes) -> bytes:
    return stored_key if node.windows is None else split_window_key(stored_key)[0]


def _replaced(beyond: Mapping[int, int]) -> Failure:
    partition, end = next(iter(beyond.items()))
    return Failure(
        Reason.NOT_RETAINED,
        f"partition {partition} ends at {end}, before this id: the topic was deleted and made again",
        "begin with from=start, or with from=latest",
        partition=partition,
    )


def _unreadable() -> Failure:
    return Failure(
        Reason.NOT_AVAILABLE,
        "the changes that come next cannot be read from any node at present",
        "retry; /v1/status of the nodes says why",
        retry_after_ms=_RETRY_MS,
    )
