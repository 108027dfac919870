"""Every request a client offers, as an operation: what to ask whom, and what the answer means.

Strategy: keys go to their owners, then to the service address, which forwards. Reads over several partitions go to any node;
the nodes take turns. A session's read is first the plain one, which costs nothing more; an answer from a copy that is behind
what the session has seen is thrown away, and the read repeated with what it must have reached. So is an answer that a key is
not there, while the session has a position elsewhere that no node is known to have looked at.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any, Final
from urllib.parse import quote_from_bytes

from queryable_app.client.attempts import Attempt, Operation, Request, Response, gather, send_one
from queryable_app.client.exceptions import InvalidRequest, NotAvailable, NotFreshEnough, TooLarge
from queryable_app.client.keys import Key, base64url, in_request, record_key
from queryable_app.client.options import COUNT_DEADLINE_MS, DEADLINE_MS, PAGE_DEADLINE_MS, Order, ReadSettings
from queryable_app.client.placement_cache import PlacementCache
from queryable_app.client.placement_map import PlacementMap
from queryable_app.client.rows import (
    UNKNOWN,
    Row,
    Unknown,
    Written,
    freshness_of,
    item_row,
    json_of,
    page_of,
    parsed,
    point_row,
    positions_of,
    rows_of,
    written_of,
)
from queryable_app.client.scan import Scan, new_scan
from queryable_app.client.sender import Targets
from queryable_app.client.session import SessionPositions
from queryable_app.errors import shown
from queryable_app.wire.json_text import BadJson, check_bounds

KEYS_AT_ONCE: Final = 2_000  # of a multi-get that one node gets; more go in several requests
_KEY_BYTES_MAX: Final = 16 * 1024  # a key that is longer goes in a body
_TARGET_BYTES_MAX: Final = 60 * 1024  # nodes take heads of 64 KiB
_BYTES: Final = "application/octet-stream"
_NOT_FOUND: Final = re.compile(rb'"found": ?false')

# Before these no hedge makes sense: such answers may take long for reasons of their own.
_WAITING_PATIENCE: Final = 0.1
_MANY_PATIENCE: Final = 0.5
_COUNT_PATIENCE: Final = 5.0


class Operations:
    def __init__(self, urls: Sequence[str], clock: Callable[[], float], random: Random | None = None) -> None:
        self._urls = tuple(urls)
        self._clock = clock
        spread = random or Random()  # noqa: S311 - it spreads load, and guards nothing
        self._placement_cache = PlacementCache(urls, clock, spread)

    # Reads.

    def get(
        self, key: Key, raw: bool, asked: ReadSettings, session: SessionPositions | None
    ) -> Operation[Row | None]:
        deadline = self._deadline(asked, DEADLINE_MS)
        placement = yield from self._placement_cache.placement(deadline)
        record = record_key(key, placement.codec)
        texts, how = in_request([record], placement.codec)
        if len(texts[0]) > _KEY_BYTES_MAX and not raw:
            row = (yield from self.multi_get([key], asked, session))[0]
            assert row is not UNKNOWN  # that is for those who have allowed it
            return row

        def make(wanted: ReadSettings, left_ms: int) -> Request:
            parameters = how + wanted.parameters(left_ms if wanted.waits else None)
            accept = _BYTES if raw else "application/json"
            return Request("GET", _target(f"/v1/keys/{texts[0]}", parameters), accept)

        targets = partial(self._placement_cache.owners, record, deadline)
        patience = _WAITING_PATIENCE if asked.waits else 0.0
        answer = yield from self._read(make, targets, deadline, asked, session, patience)
        if answer.status == 404:
            return None
        return parsed(answer, lambda answer: point_row(key, answer, raw))

    def multi_get(
        self,
        keys: Sequence[Key],
        asked: ReadSettings,
        session: SessionPositions | None,
        partial: bool = False,
    ) -> Operation[list[Row | Unknown | None]]:
        """One request to each node that holds some of them, all at once."""
        deadline = self._deadline(asked, PAGE_DEADLINE_MS)
        placement = yield from self._placement_cache.placement(deadline)
        records = [record_key(key, placement.codec) for key in keys]
        by_owner: dict[tuple[str, ...], list[int]] = {}
        for index, record in enumerate(records):
            by_owner.setdefault(placement.owners_of(record)[:1], []).append(index)
        parts = [
            (owner, indices[start : start + KEYS_AT_ONCE])
            for owner, indices in by_owner.items()
            for start in range(0, len(indices), KEYS_AT_ONCE)
        ]
        answers = yield from gather(
            [
                self._many_keys(
                    owner, [(keys[i], records[i]) for i in indices], deadline, asked, session, partial
                )
                for owner, indices in parts
            ]
        )
        rows: list[Row | Unknown | None] = [None] * len(keys)
        for (_, indices), found in zip(parts, answers, strict=True):
            for index, row in zip(indices, found, strict=True):
                rows[index] = row
        return rows

    def count(
        self, approximate: bool, asked: ReadSettings, session: SessionPositions | None
    ) -> Operation[int]:
        deadline = self._deadline(asked, COUNT_DEADLINE_MS)

        def make(wanted: ReadSettings, left_ms: int) -> Request:
            how = ["approximate=true"] if approximate else []
            return Request("GET", _target("/v1/count", how + wanted.parameters(left_ms)))

        targets = partial(self._placement_cache.any_node, (), deadline)
        answer = yield from self._read(make, targets, deadline, asked, session, _COUNT_PATIENCE)
        return parsed(answer, _count_of)

    def status(self, asked: ReadSettings) -> Operation[dict[str, dict[str, Any] | None]]:
        """Of each node, by address; None for one that does not answer. Where nodes cannot be reached from here, what the
        service address answers."""
        deadline = self._deadline(asked, DEADLINE_MS)
        nodes = (yield from self._placement_cache.placement(deadline)).nodes
        statuses = yield from gather([self._status(node, deadline) for node in nodes])
        if any(status is not None for status in statuses):
            return dict(zip(nodes, statuses, strict=True))
        others = [url for url in self._urls if url not in nodes]
        answers = yield from gather([self._status(url, deadline) for url in others])
        return dict(zip((*nodes, *others), (*statuses, *answers), strict=True))

    # Reads that go on: a page, and where the next one begins.

    def scan(
        self, asked: ReadSettings, order: Order, limit: int | None, page_rows: int, partial: bool = False
    ) -> Scan:
        return new_scan(lambda _: ("/v1/scan", []), asked, order, limit, page_rows, partial)

    def range(
        self,
        start: Key | None,
        stop: Key | None,
        asked: ReadSettings,
        order: Order,
        limit: int | None,
        page_rows: int,
        partial: bool = False,
    ) -> Scan:
        given = [(name, key) for name, key in (("from", start), ("to", stop)) if key is not None]

        def path(placement: PlacementMap) -> tuple[str, list[str]]:
            texts, how = in_request([record_key(key, placement.codec) for _, key in given], placement.codec)
            return "/v1/range", [f"{name}={text}" for (name, _), text in zip(given, texts, strict=True)] + how

        return new_scan(path, asked, order, limit, page_rows, partial)

    def prefix(
        self,
        prefix: str | bytes,
        asked: ReadSettings,
        order: Order,
        limit: int | None,
        page_rows: int,
        partial: bool = False,
    ) -> Scan:
        try:
            text = quote_from_bytes(prefix if isinstance(prefix, bytes) else prefix.encode(), safe="")
        except (AttributeError, UnicodeEncodeError):
            raise InvalidRequest(f"prefix: {shown(prefix)} is no text", "give a str, or bytes") from None
        path = f"/v1/prefix/{text.replace('.', '%2E') if text in ('.', '..') else text}"
        return new_scan(lambda _: (path, []), asked, order, limit, page_rows, partial)

    def next_page(self, scan: Scan, session: SessionPositions | None) -> Operation[None]:
        """Fill `ready`. After a failure it may be called again, and goes on where it was."""
        deadline = self._deadline(scan.asked, PAGE_DEADLINE_MS)
        path, given = scan.path((yield from self._placement_cache.placement(deadline)))
        how = given + scan.parameters()

        def make(wanted: ReadSettings, left_ms: int) -> Request:
            return Request("GET", _target(path, how + wanted.parameters(left_ms)))

        targets = partial(self._placement_cache.any_node, (), deadline)
        answer = yield from self._read(make, targets, deadline, scan.asked, session, _MANY_PATIENCE)
        scan.add(parsed(answer, page_of))

    # Writes.

    def put(
        self, key: Key, value: object, asked: ReadSettings, session: SessionPositions | None
    ) -> Operation[Written]:
        deadline = self._deadline(asked, PAGE_DEADLINE_MS)
        record = record_key(key, (yield from self._placement_cache.placement(deadline)).codec)
        try:
            text = json.dumps(value, allow_nan=False).encode()
            check_bounds(text)
        except BadJson as bad:
            raise InvalidRequest(f"value: {bad}", "a topic takes no such value; docs/http.md") from None
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidRequest(
                f"value: {shown(value)} is no JSON ({error})", "give what JSON can say"
            ) from None
        body = b'{"key":"%b","value":%b}' % (base64url(record).encode(), text)

        def make(left_ms: int) -> Request:
            target = f"/v1/records?key-encoding=base64url&deadline-ms={left_ms}"
            return Request("POST", target, body=body, writes=True)

        return (yield from self._write(make, record, deadline, session))[0]

    def delete(
        self, key: Key, asked: ReadSettings, session: SessionPositions | None
    ) -> Operation[tuple[Written, ...]]:
        deadline = self._deadline(asked, PAGE_DEADLINE_MS)
        placement = yield from self._placement_cache.placement(deadline)
        record = record_key(key, placement.codec)
        texts, how = in_request([record], placement.codec)

        def make(left_ms: int) -> Request:
            target = _target(f"/v1/records/{texts[0]}", [*how, f"deadline-ms={left_ms}"])
            return Request("DELETE", target, writes=True)

        return (yield from self._write(make, record, deadline, session))

    # What reads have in common.

    def _read(
        self,
        make: Callable[[ReadSettings, int], Request],
        targets: Targets,
        deadline: float,
        asked: ReadSettings,
        session: SessionPositions | None,
        patience: float,
    ) -> Operation[Response]:
        """The answer. With a session, one that is not behind what the session has seen, in any partition: where producers use
        several partitioners, an answer for one key is as of several."""
        floors: Mapping[int, int] = {} if session is None else session.seen
        ask = self._placement_cache.asking.ask
        if not asked.can_require(floors):
            judge = partial(_behind, floors)
            answer = yield from ask(partial(make, asked), targets, deadline, judge, patience)
        else:
            answer = yield from ask(partial(make, asked), targets, deadline, patience=patience)
            assert session is not None  # it has floors
            behind = _behind(floors, answer)
            unconfirmed = session.unconfirmed(self._clock()) if _finds_nothing(answer) else {}
            if behind is not None or unconfirmed.keys() - positions_of(answer).keys():
                if behind is not None and self._clock() >= deadline:
                    raise behind
                named = {p: floors[p] for p in positions_of(answer) if p in floors} | unconfirmed
                again, patience = partial(make, asked.at_least(named)), max(patience, _WAITING_PATIENCE)
                answer = yield from ask(again, targets, deadline, partial(_behind, floors), patience)
                session.confirm(named, self._clock())
        if session is not None:
            session.note(positions_of(answer))
        return answer

    def _many_keys(
        self,
        owner: Sequence[str],
        keys: Sequence[tuple[Key, bytes]],
        deadline: float,
        asked: ReadSettings,
        session: SessionPositions | None,
        part: bool,
    ) -> Operation[list[Row | Unknown | None]]:
        body = json.dumps({"keys": [base64url(record) for _, record in keys]}).encode()

        def make(wanted: ReadSettings, left_ms: int) -> Request:
            parameters = ["key-encoding=base64url", *wanted.parameters(left_ms)]
            parameters += ["partial=allow"] if part else []
            return Request("POST", _target("/v1/multi-get", parameters), body=body)

        targets = partial(self._placement_cache.any_node, owner, deadline)
        answer = yield from self._read(make, targets, deadline, asked, session, _MANY_PATIENCE)
        return parsed(answer, lambda answer: _items(answer, keys, part))

    def _write(
        self,
        make: Callable[[int], Request],
        record: bytes,
        deadline: float,
        session: SessionPositions | None,
    ) -> Operation[tuple[Written, ...]]:
        answer = yield from self._placement_cache.asking.write(
            make, partial(self._placement_cache.owners, record, deadline), deadline
        )
        written: tuple[Written, ...] = parsed(answer, written_of)
        if session is not None:
            session.note_written({each.partition: each.offset + 1 for each in written})
        return written

    def _status(self, address: str, deadline: float) -> Operation[dict[str, Any] | None]:
        attempt = Attempt(address, Request("GET", "/v1/status"), self._clock(), deadline)
        answer = yield from send_one(attempt)
        if not isinstance(answer, Response) or answer.status != 200:
            return None
        try:
            status = json_of(answer)
        except ValueError:
            return None
        return status if isinstance(status, dict) else None

    def _deadline(self, asked: ReadSettings, usual_ms: int) -> float:
        return self._clock() + (usual_ms if asked.deadline_ms is None else asked.deadline_ms) / 1000


def _items(answer: Response, keys: Sequence[tuple[Key, bytes]], part: bool) -> list[Row | Unknown | None]:
    items, freshness = rows_of(answer)["items"], freshness_of(answer)
    rows: list[Row | Unknown | None] = []
    for item, (key, _) in zip(items, keys, strict=True):
        if item["found"] is None and not part:
            raise NotAvailable("a key may be in a partition that nobody reads", "see /v1/status")
        unknown = UNKNOWN if item["found"] is None else None
        rows.append(item_row(item, freshness, key) if item["found"] else unknown)
    return rows


def _behind(floors: Mapping[int, int], answer: Response) -> NotFreshEnough | None:
    """Why a session cannot take this answer."""
    positions = positions_of(answer)
    short = [p for p, floor in floors.items() if positions.get(p, floor) < floor]
    if not short:
        return None
    p = short[0]
    return NotFreshEnough(
        f"the copy of partition {p} is at {positions[p]}, and the session has seen {floors[p]}",
        "give it more time with deadline_ms",
        partition=p,
        position=f"{p}:{positions[p]}",
        retry_after_ms=50,
    )


def _finds_nothing(answer: Response) -> bool:
    """Whether it says of a key that it is not there. A value that has these words costs a request more."""
    return answer.status == 404 or _NOT_FOUND.search(answer.body) is not None


def _count_of(answer: Response) -> int:
    return int(json_of(answer)["count"])


def _target(path: str, parameters: Sequence[str]) -> str:
    target = f"{path}?{'&'.join(parameters)}" if parameters else path
    if len(target) > _TARGET_BYTES_MAX:
        raise TooLarge(
            "the key is longer than a request's head", "read it with multi_get, which takes longer ones"
        )
    return target
