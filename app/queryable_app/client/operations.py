"""Implement each request of the client as an operation: the addresses to try, and the meaning of the response.

Strategy: a key is read from its replicas, then from the service address, which forwards. A read of several partitions goes to
any node, in turn. `requests.py` sends what is created here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final
from urllib.parse import quote_from_bytes

from queryable_app.client.attempts import Operation, Request, Response, gather
from queryable_app.client.changes import WAIT_SECONDS, Following
from queryable_app.client.exceptions import InvalidRequest
from queryable_app.client.keys import Key, in_request, record_key
from queryable_app.client.membership import Membership
from queryable_app.client.options import COUNT_DEADLINE_MS, DEADLINE_MS, PAGE_DEADLINE_MS, ReadSettings
from queryable_app.client.placement_map import PlacementMap
from queryable_app.client.requests import (
    BYTES,
    COUNT_PATIENCE,
    JSON,
    MANY_PATIENCE,
    NDJSON,
    SEARCH_PATIENCE,
    WAITING_PATIENCE,
    request_target,
)
from queryable_app.client.rows import (
    UNKNOWN,
    Group,
    Row,
    Unknown,
    count_of,
    groups_of,
    page_of,
    parsed,
    point_row,
    top_rows,
    window_row,
)
from queryable_app.client.scan import Scan, new_scan
from queryable_app.client.selection import PROBE
from queryable_app.client.session import SessionPositions
from queryable_app.client.windows import Target, Time, top_target, window_target, windows_target
from queryable_app.client.writes import Writes
from queryable_app.errors import shown
from queryable_app.wire.cursors import Order
from queryable_app.wire.key_filter import decode_filter

# Of a multi-get: more keys of one node go in several requests.
KEYS_PER_REQUEST: Final = 2_000
KEY_BYTES_PER_REQUEST: Final = 1 << 20  # as base64; a node accepts bodies of 2 MiB
_KEY_BYTES_MAX: Final = 16 * 1024  # a longer key goes in a body


class Operations(Writes):
    """Create the operations of one client."""

    # Reads.

    def get(
        self,
        key: Key,
        raw: bool,
        settings: ReadSettings,
        session: SessionPositions | None,
        selection: Sequence[str] = (),
    ) -> Operation[Row | None]:
        """Return the row of a key, or None. With `raw` its value is the stored bytes."""
        if raw and selection:
            raise InvalidRequest("fields: the stored bytes have none", "leave out `raw` or `fields`")
        deadline = self._deadline(settings, DEADLINE_MS)
        placement = yield from self._placements.placement(deadline)
        record = record_key(key, placement.codec)
        if not raw and len(in_request([record], placement.codec)[0][0]) > _KEY_BYTES_MAX:
            row = (yield from self.multi_get([key], settings, session, selection=selection))[0]
            assert row is not UNKNOWN  # only partial reads return it
            return row
        accept = BYTES if raw else JSON
        response = yield from self._point_read(
            record, placement, accept, deadline, settings, session, selection
        )
        if response.status == 404:
            return None
        return parsed(response, lambda response: point_row(key, response, raw))

    def exists(self, key: Key, settings: ReadSettings, session: SessionPositions | None) -> Operation[bool]:
        """Return whether a key exists, without its value."""
        deadline = self._deadline(settings, DEADLINE_MS)
        placement = yield from self._placements.placement(deadline)
        record = record_key(key, placement.codec)
        if len(in_request([record], placement.codec)[0][0]) > _KEY_BYTES_MAX:
            return (yield from self.get(key, False, settings, session)) is not None
        response = yield from self._point_read(record, placement, JSON, deadline, settings, session, PROBE)
        return response.status != 404

    def get_response(
        self, key: Key, settings: ReadSettings, selection: Sequence[str] = ()
    ) -> Operation[Response]:
        """Return a node's own response to a point read: the value as the node writes it, or `key_not_found`."""
        deadline = self._deadline(settings, DEADLINE_MS)
        placement = yield from self._placements.placement(deadline)
        record = record_key(key, placement.codec)
        return (yield from self._point_read(record, placement, JSON, deadline, settings, None, selection))

    def multi_get(
        self,
        keys: Sequence[Key],
        settings: ReadSettings,
        session: SessionPositions | None,
        partial: bool = False,
        selection: Sequence[str] = (),
    ) -> Operation[list[Row | Unknown | None]]:
        """Return the rows in the order of the keys. Each node gets one request for its keys, all at the same time."""
        deadline = self._deadline(settings, PAGE_DEADLINE_MS)
        placement = yield from self._placements.placement(deadline)
        records = [record_key(key, placement.codec) for key in keys]
        by_owner: dict[tuple[str, ...], list[int]] = {}
        for index, record in enumerate(records):
            by_owner.setdefault(placement.owners_of(record)[:1], []).append(index)
        parts = [(owner, part) for owner, indices in by_owner.items() for part in _requests(indices, records)]
        responses = yield from gather(
            [
                self._many_keys(
                    owner,
                    [(keys[i], records[i]) for i in indices],
                    deadline,
                    settings,
                    session,
                    partial,
                    selection,
                )
                for owner, indices in parts
            ]
        )
        rows: list[Row | Unknown | None] = [None] * len(keys)
        for (_, indices), found in zip(parts, responses, strict=True):
            for index, row in zip(indices, found, strict=True):
                rows[index] = row
        return rows

    def window(
        self, key: Key, start: Time, settings: ReadSettings, session: SessionPositions | None
    ) -> Operation[Row | None]:
        """Return the window of a key that starts at a time, or None."""
        deadline = self._deadline(settings, DEADLINE_MS)
        placement = yield from self._placements.placement(deadline)
        record = record_key(key, placement.codec)
        path, encoding = window_target(record, start, placement)

        def make(wanted: ReadSettings, left_ms: int) -> Request:
            return Request("GET", request_target(path, encoding + wanted.parameters(left_ms)))

        targets = partial(self._placements.owners, record, deadline)
        response = yield from self._read(make, targets, deadline, settings, session, WAITING_PATIENCE)
        if response.status == 404:
            return None
        return parsed(response, lambda response: window_row(key, response))

    def top(
        self,
        by: str,
        k: int,
        order: Order,
        start: Time | None,
        stop: Time | None,
        settings: ReadSettings,
        session: SessionPositions | None,
    ) -> Operation[list[Row]]:
        """Return the windows with the greatest or the least results of a column, the best one first."""
        response = yield from self.top_response(by, k, order, start, stop, settings, session)
        return parsed(response, top_rows)

    def top_response(
        self,
        by: str,
        k: int,
        order: Order,
        start: Time | None,
        stop: Time | None,
        settings: ReadSettings,
        session: SessionPositions | None = None,
    ) -> Operation[Response]:
        """Return a node's own response to a read of the best windows."""
        deadline = self._deadline(settings, PAGE_DEADLINE_MS)
        path, parameters = top_target(by, k, order, start, stop)
        return (yield from self._read_anywhere(path, parameters, deadline, settings, session))

    def count(
        self,
        approximate: bool,
        settings: ReadSettings,
        session: SessionPositions | None,
        selection: Sequence[str] = (),
    ) -> Operation[int]:
        """Return the number of keys, of those that match."""
        deadline = self._deadline(settings, COUNT_DEADLINE_MS)
        parameters = [*selection, *(["approximate=true"] if approximate else [])]
        response = yield from self._read_anywhere(
            "/v1/count", parameters, deadline, settings, session, patience=COUNT_PATIENCE
        )
        return parsed(response, count_of)

    def index_count(
        self, target: Target, settings: ReadSettings, session: SessionPositions | None
    ) -> Operation[int]:
        """Return the number of rows of an index, of those that the target names."""
        path, parameters = target
        deadline = self._deadline(settings, COUNT_DEADLINE_MS)
        response = yield from self._read_anywhere(
            path, parameters, deadline, settings, session, patience=COUNT_PATIENCE
        )
        return parsed(response, count_of)

    def key_filter(self, rate: float, settings: ReadSettings) -> Operation[Membership]:
        """Return a filter of all keys."""
        deadline = self._deadline(settings, COUNT_DEADLINE_MS)
        codec = (yield from self._placements.placement(deadline)).codec
        parameters = [f"rate={rate}"]
        response = yield from self._read_anywhere(
            "/v1/filter", parameters, deadline, settings, None, BYTES, COUNT_PATIENCE
        )
        keys = parsed(response, lambda response: decode_filter(response.body))
        return Membership(keys, codec, self._clock())

    def status(self, settings: ReadSettings) -> Operation[dict[str, dict[str, Any] | None]]:
        """Return the status of each node by its address, None if it does not answer. If none answers, add the given URLs."""
        deadline = self._deadline(settings, DEADLINE_MS)
        nodes = (yield from self._placements.placement(deadline)).nodes
        statuses = yield from self._statuses(nodes, deadline)
        if all(status is None for status in statuses.values()):
            others = [url for url in self.urls if url not in nodes]
            statuses |= yield from self._statuses(others, deadline)
        return statuses

    def status_of_urls(self, settings: ReadSettings) -> Operation[dict[str, dict[str, Any] | None]]:
        """Return the status of each URL that the client was given, None if it does not answer."""
        return (yield from self._statuses(self.urls, self._deadline(settings, DEADLINE_MS)))

    # Scans, a page at a time.

    def scan(
        self,
        settings: ReadSettings,
        order: Order,
        limit: int | None,
        page_rows: int,
        partial: bool = False,
        selection: Sequence[str] = (),
    ) -> Scan:
        """Return a scan of all rows."""
        return new_scan(lambda _: ("/v1/scan", []), settings, order, limit, page_rows, partial, selection)

    def range(
        self,
        start: Key | None,
        stop: Key | None,
        settings: ReadSettings,
        order: Order,
        limit: int | None,
        page_rows: int,
        partial: bool = False,
        selection: Sequence[str] = (),
    ) -> Scan:
        """Return a scan of the rows from `start` up to, and without, `stop`."""
        bounds = [(name, key) for name, key in (("from", start), ("to", stop)) if key is not None]

        def path(placement: PlacementMap) -> tuple[str, list[str]]:
            records = [record_key(key, placement.codec) for _, key in bounds]
            texts, encoding = in_request(records, placement.codec)
            parameters = [f"{name}={text}" for (name, _), text in zip(bounds, texts, strict=True)]
            return "/v1/range", parameters + encoding

        return new_scan(path, settings, order, limit, page_rows, partial, selection)

    def prefix(
        self,
        prefix: str | bytes,
        settings: ReadSettings,
        order: Order,
        limit: int | None,
        page_rows: int,
        partial: bool = False,
        selection: Sequence[str] = (),
    ) -> Scan:
        """Return a scan of the rows whose key begins with `prefix`."""
        try:
            text = quote_from_bytes(prefix if isinstance(prefix, bytes) else prefix.encode(), safe="")
        except (AttributeError, UnicodeEncodeError):
            raise InvalidRequest(f"prefix: {shown(prefix)} is no text", "give a str, or bytes") from None
        path = f"/v1/prefix/{text.replace('.', '%2E') if text in ('.', '..') else text}"
        return new_scan(lambda _: (path, []), settings, order, limit, page_rows, partial, selection)

    def windows_response(
        self,
        key: Key | None,
        start: Time | None,
        stop: Time | None,
        settings: ReadSettings,
        more: Sequence[str],
    ) -> Operation[Response]:
        """Return a node's own response: a window on each line, as the node writes it."""
        deadline = self._deadline(settings, PAGE_DEADLINE_MS)
        path, bounds = windows_target(key, start, stop)((yield from self._placements.placement(deadline)))
        return (yield from self._read_anywhere(path, [*bounds, *more], deadline, settings, None, NDJSON))

    def next_page(self, scan: Scan, session: SessionPositions | None) -> Operation[None]:
        """Read the scan's next page into `ready`. After a failure, another call reads the same page."""
        scan.add(parsed((yield from self.page_response(scan, session)), page_of))

    def page_response(self, scan: Scan, session: SessionPositions | None = None) -> Operation[Response]:
        """Return a node's own response to the read of the scan's next page."""
        deadline = self._deadline(scan.settings, PAGE_DEADLINE_MS)
        path, bounds = scan.path((yield from self._placements.placement(deadline)))
        parameters = bounds + scan.parameters()
        patience = SEARCH_PATIENCE if scan.selection else MANY_PATIENCE
        settings = scan.settings
        if scan.as_of:  # a moment is all that is to be required of the replicas
            settings, session = ReadSettings(deadline_ms=settings.deadline_ms), None
        return (
            yield from self._read_anywhere(path, parameters, deadline, settings, session, patience=patience)
        )

    def next_groups(self, scan: Scan, session: SessionPositions | None) -> Operation[list[Group]]:
        """Return the next page of the values of an index. After a failure, another call reads the same page."""
        groups, cursor = parsed((yield from self.page_response(scan, session)), groups_of)
        scan.go_on(cursor, len(groups))
        return groups

    def next_changes(self, following: Following, wait_seconds: float = WAIT_SECONDS) -> Operation[None]:
        """Read the next page of changes. After a failure, another call reads the same page."""
        deadline = self._clock() + wait_seconds + PAGE_DEADLINE_MS / 1000
        path, parameters = following.target((yield from self._placements.placement(deadline)), wait_seconds)
        request = Request("GET", request_target(path, parameters), NDJSON)
        targets = partial(self._placements.any_node, (), deadline, following.turn)
        patience = wait_seconds + COUNT_PATIENCE
        response = yield from self._placements.sender.read(
            lambda _: request, targets, deadline, patience=patience
        )
        parsed(response, following.add)


def _requests(indices: Sequence[int], records: Sequence[bytes]) -> list[list[int]]:
    """Divide the indices of the keys of one node over requests."""
    parts: list[list[int]] = []
    size = 0
    for index in indices:
        key_bytes = len(records[index]) * 4 // 3
        if not parts or len(parts[-1]) == KEYS_PER_REQUEST or size + key_bytes > KEY_BYTES_PER_REQUEST:
            parts.append([])
            size = 0
        parts[-1].append(index)
        size += key_bytes
    return parts
