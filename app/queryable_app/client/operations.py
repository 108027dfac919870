"""Implement each request of the client as an operation: the addresses to try, and the meaning of the response.

Strategy: a key is read from its replicas, then from the service address, which forwards. A read of several partitions goes to
any node, in turn. A session first sends the plain read, which costs nothing more. If the response is from a replica that lags
behind what the session has seen, the client drops it and reads again, requiring those positions. It does the same with a
response that a key does not exist, while the session has a position in another partition that no read has confirmed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any, Final
from urllib.parse import quote_from_bytes

from queryable_app.client.attempts import Attempt, Operation, Request, Response, gather, send_one
from queryable_app.client.exceptions import InvalidRequest, TooLarge
from queryable_app.client.keys import Key, base64url, in_request, record_key
from queryable_app.client.options import COUNT_DEADLINE_MS, DEADLINE_MS, PAGE_DEADLINE_MS, ReadSettings
from queryable_app.client.placement_cache import PlacementCache
from queryable_app.client.placement_map import PlacementMap
from queryable_app.client.rows import (
    UNKNOWN,
    Row,
    Unknown,
    Written,
    count_of,
    json_of,
    multi_get_rows,
    page_of,
    parsed,
    point_row,
    positions_of,
    top_rows,
    window_row,
    written_of,
)
from queryable_app.client.scan import Scan, new_scan
from queryable_app.client.sender import Targets
from queryable_app.client.session import SessionPositions, behind_session, reports_missing_key
from queryable_app.client.windows import Time, top_target, window_target, windows_target
from queryable_app.errors import shown
from queryable_app.wire.cursors import Order
from queryable_app.wire.json_text import BadJson, parse_json

# Of a multi-get: more keys of one node go in several requests.
KEYS_PER_REQUEST: Final = 2_000
KEY_BYTES_PER_REQUEST: Final = 1 << 20  # as base64; a node accepts bodies of 2 MiB
_KEY_BYTES_MAX: Final = 16 * 1024  # a longer key goes in a body
_TARGET_BYTES_MAX: Final = 60 * 1024  # nodes accept heads of 64 KiB
_JSON: Final = "application/json"
_BYTES: Final = "application/octet-stream"
_NDJSON: Final = "application/x-ndjson"

# Seconds before which no hedge is sent: such reads may take long on a healthy node.
_WAITING_PATIENCE: Final = 0.1
_MANY_PATIENCE: Final = 0.5
_COUNT_PATIENCE: Final = 5.0


class Operations:
    """Create the operations of one client. Without `retries` an operation tries each address once."""

    def __init__(
        self,
        urls: Sequence[str],
        clock: Callable[[], float],
        random: Random | None = None,
        retries: bool = True,
    ) -> None:
        self._urls = tuple(urls)
        self._clock = clock
        spread = random or Random()  # noqa: S311 - it spreads load, and guards nothing
        self._placements = PlacementCache(urls, clock, spread, retries)

    # Reads.

    def get(
        self, key: Key, raw: bool, settings: ReadSettings, session: SessionPositions | None
    ) -> Operation[Row | None]:
        """Return the row of a key, or None. With `raw` its value is the stored bytes."""
        deadline = self._deadline(settings, DEADLINE_MS)
        placement = yield from self._placements.placement(deadline)
        record = record_key(key, placement.codec)
        if not raw and len(in_request([record], placement.codec)[0][0]) > _KEY_BYTES_MAX:
            row = (yield from self.multi_get([key], settings, session))[0]
            assert row is not UNKNOWN  # only partial reads return it
            return row
        accept = _BYTES if raw else _JSON
        response = yield from self._point_read(record, placement, accept, deadline, settings, session)
        if response.status == 404:
            return None
        return parsed(response, lambda response: point_row(key, response, raw))

    def get_response(self, key: Key, settings: ReadSettings) -> Operation[Response]:
        """Return a node's own response to a point read: the value as the node writes it, or `key_not_found`."""
        deadline = self._deadline(settings, DEADLINE_MS)
        placement = yield from self._placements.placement(deadline)
        record = record_key(key, placement.codec)
        return (yield from self._point_read(record, placement, _JSON, deadline, settings, None))

    def multi_get(
        self,
        keys: Sequence[Key],
        settings: ReadSettings,
        session: SessionPositions | None,
        partial: bool = False,
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
                    owner, [(keys[i], records[i]) for i in indices], deadline, settings, session, partial
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
            return Request("GET", _target(path, encoding + wanted.parameters(left_ms)))

        targets = partial(self._placements.owners, record, deadline)
        response = yield from self._read(make, targets, deadline, settings, session, _WAITING_PATIENCE)
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
        self, approximate: bool, settings: ReadSettings, session: SessionPositions | None
    ) -> Operation[int]:
        """Return the number of keys."""
        deadline = self._deadline(settings, COUNT_DEADLINE_MS)
        parameters = ["approximate=true"] if approximate else []
        response = yield from self._read_anywhere(
            "/v1/count", parameters, deadline, settings, session, patience=_COUNT_PATIENCE
        )
        return parsed(response, count_of)

    def status(self, settings: ReadSettings) -> Operation[dict[str, dict[str, Any] | None]]:
        """Return the status of each node by its address, None if it does not answer. If none answers, add the given URLs."""
        deadline = self._deadline(settings, DEADLINE_MS)
        nodes = (yield from self._placements.placement(deadline)).nodes
        statuses = yield from self._statuses(nodes, deadline)
        if all(status is None for status in statuses.values()):
            others = [url for url in self._urls if url not in nodes]
            statuses |= yield from self._statuses(others, deadline)
        return statuses

    def status_of_urls(self, settings: ReadSettings) -> Operation[dict[str, dict[str, Any] | None]]:
        """Return the status of each URL that the client was given, None if it does not answer."""
        return (yield from self._statuses(self._urls, self._deadline(settings, DEADLINE_MS)))

    # Scans, a page at a time.

    def scan(
        self, settings: ReadSettings, order: Order, limit: int | None, page_rows: int, partial: bool = False
    ) -> Scan:
        """Return a scan of all rows."""
        return new_scan(lambda _: ("/v1/scan", []), settings, order, limit, page_rows, partial)

    def range(
        self,
        start: Key | None,
        stop: Key | None,
        settings: ReadSettings,
        order: Order,
        limit: int | None,
        page_rows: int,
        partial: bool = False,
    ) -> Scan:
        """Return a scan of the rows from `start` up to, and without, `stop`."""
        bounds = [(name, key) for name, key in (("from", start), ("to", stop)) if key is not None]

        def path(placement: PlacementMap) -> tuple[str, list[str]]:
            records = [record_key(key, placement.codec) for _, key in bounds]
            texts, encoding = in_request(records, placement.codec)
            parameters = [f"{name}={text}" for (name, _), text in zip(bounds, texts, strict=True)]
            return "/v1/range", parameters + encoding

        return new_scan(path, settings, order, limit, page_rows, partial)

    def prefix(
        self,
        prefix: str | bytes,
        settings: ReadSettings,
        order: Order,
        limit: int | None,
        page_rows: int,
        partial: bool = False,
    ) -> Scan:
        """Return a scan of the rows whose key begins with `prefix`."""
        try:
            text = quote_from_bytes(prefix if isinstance(prefix, bytes) else prefix.encode(), safe="")
        except (AttributeError, UnicodeEncodeError):
            raise InvalidRequest(f"prefix: {shown(prefix)} is no text", "give a str, or bytes") from None
        path = f"/v1/prefix/{text.replace('.', '%2E') if text in ('.', '..') else text}"
        return new_scan(lambda _: (path, []), settings, order, limit, page_rows, partial)

    def windows(
        self,
        key: Key | None,
        start: Time | None,
        stop: Time | None,
        settings: ReadSettings,
        order: Order,
        limit: int | None,
        page_rows: int,
        partial: bool = False,
    ) -> Scan:
        """Return a scan of the windows that start from `start` up to, and without, `stop`: of a key, or of all keys."""
        return new_scan(windows_target(key, start, stop), settings, order, limit, page_rows, partial)

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
        return (yield from self._read_anywhere(path, [*bounds, *more], deadline, settings, None, _NDJSON))

    def next_page(self, scan: Scan, session: SessionPositions | None) -> Operation[None]:
        """Read the scan's next page into `ready`. After a failure, another call reads the same page."""
        deadline = self._deadline(scan.settings, PAGE_DEADLINE_MS)
        path, bounds = scan.path((yield from self._placements.placement(deadline)))
        parameters = bounds + scan.parameters()
        response = yield from self._read_anywhere(path, parameters, deadline, scan.settings, session)
        scan.add(parsed(response, page_of))

    # Writes.

    def put(
        self, key: Key, value: object, settings: ReadSettings, session: SessionPositions | None
    ) -> Operation[Written]:
        """Write a record, and return where it is."""
        deadline = self._deadline(settings, PAGE_DEADLINE_MS)
        record = record_key(key, (yield from self._placements.placement(deadline)).codec)
        try:
            text = json.dumps(value, allow_nan=False).encode()
            parse_json(text)
        except BadJson as bad:
            raise InvalidRequest(f"value: {bad}", "see the rules for JSON in docs/http.md") from None
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidRequest(
                f"value: {shown(value)} cannot be written as JSON ({error})",
                "give a value that JSON can express",
            ) from None
        body = b'{"key":"%b","value":%b}' % (base64url(record).encode(), text)

        def make(left_ms: int) -> Request:
            target = f"/v1/records?key-encoding=base64url&deadline-ms={left_ms}"
            return Request("POST", target, body=body)

        return (yield from self._write(make, record, deadline, session))[0]

    def delete(
        self, key: Key, settings: ReadSettings, session: SessionPositions | None
    ) -> Operation[tuple[Written, ...]]:
        """Write a tombstone, to several partitions if any of them may hold the key."""
        deadline = self._deadline(settings, PAGE_DEADLINE_MS)
        placement = yield from self._placements.placement(deadline)
        record = record_key(key, placement.codec)
        texts, encoding = in_request([record], placement.codec)

        def make(left_ms: int) -> Request:
            target = _target(f"/v1/records/{texts[0]}", [*encoding, f"deadline-ms={left_ms}"])
            return Request("DELETE", target)

        return (yield from self._write(make, record, deadline, session))

    # Shared by the requests above.

    def _point_read(
        self,
        record: bytes,
        placement: PlacementMap,
        accept: str,
        deadline: float,
        settings: ReadSettings,
        session: SessionPositions | None,
    ) -> Operation[Response]:
        texts, encoding = in_request([record], placement.codec)

        def make(wanted: ReadSettings, left_ms: int) -> Request:
            parameters = encoding + wanted.parameters(left_ms if wanted.waits else None)
            return Request("GET", _target(f"/v1/keys/{texts[0]}", parameters), accept)

        targets = partial(self._placements.owners, record, deadline)
        patience = _WAITING_PATIENCE if settings.waits else 0.0
        return (yield from self._read(make, targets, deadline, settings, session, patience))

    def _read_anywhere(
        self,
        path: str,
        parameters: Sequence[str],
        deadline: float,
        settings: ReadSettings,
        session: SessionPositions | None,
        accept: str = _JSON,
        patience: float = _MANY_PATIENCE,
    ) -> Operation[Response]:
        """Read from any node, in turn."""

        def make(wanted: ReadSettings, left_ms: int) -> Request:
            return Request("GET", _target(path, [*parameters, *wanted.parameters(left_ms)]), accept)

        targets = partial(self._placements.any_node, (), deadline)
        return (yield from self._read(make, targets, deadline, settings, session, patience))

    def _read(
        self,
        make: Callable[[ReadSettings, int], Request],
        targets: Targets,
        deadline: float,
        settings: ReadSettings,
        session: SessionPositions | None,
        patience: float,
    ) -> Operation[Response]:
        """Return a response. For a session it is not behind what the session has seen, in any partition: if producers use
        several partitioners, a response for one key has several positions."""
        floors: Mapping[int, int] = {} if session is None else session.seen
        read = self._placements.sender.read
        check = partial(behind_session, floors)
        if session is None or not settings.can_require(floors):
            response = yield from read(partial(make, settings), targets, deadline, check, patience)
        else:
            response = yield from read(partial(make, settings), targets, deadline, patience=patience)
            behind = behind_session(floors, response)
            unconfirmed = session.unconfirmed(self._clock()) if reports_missing_key(response) else {}
            if behind is not None or unconfirmed.keys() - positions_of(response).keys():
                if behind is not None and self._clock() >= deadline:
                    raise behind
                required = {p: floors[p] for p in positions_of(response) if p in floors} | unconfirmed
                make_again = partial(make, settings.at_least(required))
                patience = max(patience, _WAITING_PATIENCE)
                response = yield from read(make_again, targets, deadline, check, patience)
                session.confirm(required, self._clock())
        if session is not None:
            session.note(positions_of(response))
        return response

    def _many_keys(
        self,
        owner: Sequence[str],
        keys: Sequence[tuple[Key, bytes]],
        deadline: float,
        settings: ReadSettings,
        session: SessionPositions | None,
        allow_partial: bool,
    ) -> Operation[list[Row | Unknown | None]]:
        body = json.dumps({"keys": [base64url(record) for _, record in keys]}).encode()

        def make(wanted: ReadSettings, left_ms: int) -> Request:
            parameters = ["key-encoding=base64url", *wanted.parameters(left_ms)]
            parameters += ["partial=allow"] if allow_partial else []
            return Request("POST", _target("/v1/multi-get", parameters), body=body)

        targets = partial(self._placements.any_node, owner, deadline)
        response = yield from self._read(make, targets, deadline, settings, session, _MANY_PATIENCE)
        return parsed(
            response, lambda response: multi_get_rows(response, [key for key, _ in keys], allow_partial)
        )

    def _write(
        self,
        make: Callable[[int], Request],
        record: bytes,
        deadline: float,
        session: SessionPositions | None,
    ) -> Operation[tuple[Written, ...]]:
        response = yield from self._placements.sender.write(
            make, partial(self._placements.owners, record, deadline), deadline
        )
        written: tuple[Written, ...] = parsed(response, written_of)
        if session is not None:
            session.note_written({each.partition: each.offset + 1 for each in written})
        return written

    def _statuses(
        self, addresses: Sequence[str], deadline: float
    ) -> Operation[dict[str, dict[str, Any] | None]]:
        statuses = yield from gather([self._status(address, deadline) for address in addresses])
        return dict(zip(addresses, statuses, strict=True))

    def _status(self, address: str, deadline: float) -> Operation[dict[str, Any] | None]:
        attempt = Attempt(address, Request("GET", "/v1/status"), self._clock(), deadline)
        response = yield from send_one(attempt)
        if not isinstance(response, Response) or response.status != 200:
            return None
        try:
            status = json_of(response)
        except ValueError:
            return None
        return status if isinstance(status, dict) else None

    def _deadline(self, settings: ReadSettings, default_ms: int) -> float:
        return self._clock() + (default_ms if settings.deadline_ms is None else settings.deadline_ms) / 1000


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


def _target(path: str, parameters: Sequence[str]) -> str:
    target = f"{path}?{'&'.join(parameters)}" if parameters else path
    if len(target) > _TARGET_BYTES_MAX:
        raise TooLarge("the key is longer than a request's head", "read it with multi_get")
    return target
