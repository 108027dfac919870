"""Send the requests of the client's operations, to the owners of a key or to any node, and hold sessions to what they have seen.

Strategy: a session first sends the plain read, which costs nothing more. If the response is from a replica that lags behind what
the session has seen, the client drops it and reads again, requiring those positions. It does the same with a response that a key
does not exist, while the session has a position in another partition that no read has confirmed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any, Final

from queryable_app.client.attempts import Attempt, Operation, Request, Response, gather, send_one
from queryable_app.client.exceptions import TooLarge, from_problem
from queryable_app.client.keys import Key, base64url, in_request
from queryable_app.client.options import ReadSettings
from queryable_app.client.placement_cache import PlacementCache
from queryable_app.client.placement_map import PlacementMap
from queryable_app.client.rows import (
    Row,
    Unknown,
    json_of,
    multi_get_rows,
    parsed,
    positions_of,
)
from queryable_app.client.sender import Targets
from queryable_app.client.session import SessionPositions, behind_session, reports_missing_key

_TARGET_BYTES_MAX: Final = 60 * 1024  # nodes accept heads of 64 KiB
JSON: Final = "application/json"
BYTES: Final = "application/octet-stream"
NDJSON: Final = "application/x-ndjson"

# Seconds before which no hedge is sent: such reads may take long on a healthy node.
WAITING_PATIENCE: Final = 0.1
MANY_PATIENCE: Final = 0.5
SEARCH_PATIENCE: Final = 2.0  # a page may look at many rows for the few that match
COUNT_PATIENCE: Final = 5.0


class Requests:
    """Send requests. Without `retries` each address is tried once."""

    def __init__(
        self,
        urls: Sequence[str],
        clock: Callable[[], float],
        random: Random | None = None,
        retries: bool = True,
    ) -> None:
        self.urls = tuple(urls)
        self._clock = clock
        spread = random or Random()  # noqa: S311 - it spreads load, and guards nothing
        self._placements = PlacementCache(urls, clock, spread, retries)

    def _point_read(
        self,
        record: bytes,
        placement: PlacementMap,
        accept: str,
        deadline: float,
        settings: ReadSettings,
        session: SessionPositions | None,
        selection: Sequence[str] = (),
    ) -> Operation[Response]:
        texts, encoding = in_request([record], placement.codec)

        def make(wanted: ReadSettings, left_ms: int) -> Request:
            parameters = [*encoding, *selection, *wanted.parameters(left_ms if wanted.waits else None)]
            return Request("GET", request_target(f"/v1/keys/{texts[0]}", parameters), accept)

        targets = partial(self._placements.owners, record, deadline)
        patience = WAITING_PATIENCE if settings.waits else 0.0
        return (yield from self._read(make, targets, deadline, settings, session, patience))

    def _read_anywhere(
        self,
        path: str,
        parameters: Sequence[str],
        deadline: float,
        settings: ReadSettings,
        session: SessionPositions | None,
        accept: str = JSON,
        patience: float = MANY_PATIENCE,
    ) -> Operation[Response]:
        """Read from any node, in turn."""

        def make(wanted: ReadSettings, left_ms: int) -> Request:
            return Request("GET", request_target(path, [*parameters, *wanted.parameters(left_ms)]), accept)

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
                patience = max(patience, WAITING_PATIENCE)
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
        selection: Sequence[str],
    ) -> Operation[list[Row | Unknown | None]]:
        body = json.dumps({"keys": [base64url(record) for _, record in keys]}).encode()

        def make(wanted: ReadSettings, left_ms: int) -> Request:
            parameters = ["key-encoding=base64url", *selection, *wanted.parameters(left_ms)]
            parameters += ["partial=allow"] if allow_partial else []
            return Request("POST", request_target("/v1/multi-get", parameters), body=body)

        targets = partial(self._placements.any_node, owner, deadline)
        response = yield from self._read(make, targets, deadline, settings, session, MANY_PATIENCE)
        return parsed(
            response, lambda response: multi_get_rows(response, [key for key, _ in keys], allow_partial)
        )

    def _statuses(
        self, addresses: Sequence[str], deadline: float
    ) -> Operation[dict[str, dict[str, Any] | None]]:
        statuses = yield from gather([self._status(address, deadline) for address in addresses])
        return dict(zip(addresses, statuses, strict=True))

    def _status(self, address: str, deadline: float) -> Operation[dict[str, Any] | None]:
        attempt = Attempt(address, Request("GET", "/v1/status"), self._clock(), deadline)
        response = yield from send_one(attempt)
        if not isinstance(response, Response):
            return None
        if response.status != 200:
            refusal = from_problem(response.status, response.body, address)
            if not refusal.others_may_answer:  # the caller is refused, and the node is well
                raise refusal
            return None
        try:
            status = json_of(response)
        except ValueError:
            return None
        return status if isinstance(status, dict) else None

    def _deadline(self, settings: ReadSettings, default_ms: int) -> float:
        return self._clock() + (default_ms if settings.deadline_ms is None else settings.deadline_ms) / 1000


def request_target(path: str, parameters: Sequence[str]) -> str:
    target = f"{path}?{'&'.join(parameters)}" if parameters else path
    if len(target) > _TARGET_BYTES_MAX:
        raise TooLarge("the key is longer than a request's head", "read it with multi_get")
    return target
