"""Send records and tombstones to the owners of a key.

Strategy: a write that may have arrived is repeated only with an idempotency key, by which the nodes recognize it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

from queryable_app.client.attempts import Operation, Request
from queryable_app.client.exceptions import InvalidRequest
from queryable_app.client.keys import Key, base64url, in_request, record_key
from queryable_app.client.options import PAGE_DEADLINE_MS, ReadSettings
from queryable_app.client.requests import Requests, request_target
from queryable_app.client.rows import Written, parsed, written_of
from queryable_app.client.session import SessionPositions
from queryable_app.errors import shown
from queryable_app.wire.json_text import BadJson, parse_json

_IDEMPOTENCY_KEY_MAX = 255


class Writes(Requests):
    """The writes of a client."""

    def put(
        self,
        key: Key,
        value: object,
        settings: ReadSettings,
        session: SessionPositions | None,
        idempotency_key: str | None = None,
    ) -> Operation[Written]:
        """Write a record, and return where it is."""
        _check(idempotency_key)
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
            return Request("POST", target, body=body, idempotency_key=idempotency_key)

        return (yield from self._write(make, record, deadline, session))[0]

    def delete(
        self,
        key: Key,
        settings: ReadSettings,
        session: SessionPositions | None,
        idempotency_key: str | None = None,
    ) -> Operation[tuple[Written, ...]]:
        """Write a tombstone, to several partitions if any of them may hold the key."""
        _check(idempotency_key)
        deadline = self._deadline(settings, PAGE_DEADLINE_MS)
        placement = yield from self._placements.placement(deadline)
        record = record_key(key, placement.codec)
        texts, encoding = in_request([record], placement.codec)

        def make(left_ms: int) -> Request:
            target = request_target(f"/v1/records/{texts[0]}", [*encoding, f"deadline-ms={left_ms}"])
            return Request("DELETE", target, idempotency_key=idempotency_key)

        return (yield from self._write(make, record, deadline, session))

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


def _check(idempotency_key: str | None) -> None:
    if idempotency_key is None:
        return
    fits = 1 <= len(idempotency_key) <= _IDEMPOTENCY_KEY_MAX
    if not fits or not idempotency_key.isascii() or not idempotency_key.isprintable():
        raise InvalidRequest(
            f"idempotency_key: is not 1 to {_IDEMPOTENCY_KEY_MAX} visible characters",
            "give a text of your own for this write, such as str(uuid.uuid4())",
        )
