"""Cache the placement, refresh it, and choose the addresses of each request.

Strategy: the first request fetches the placement. It is fetched again when a response shows a newer one, when a node does not
host what it should, and every half minute, since a new revision of the view has other nodes. One request at a time fetches it
and is a little late itself. The others use the old placement, which is correct as well: a node forwards a read of a key that it
does not host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from random import Random
from typing import Final

from queryable_app.client.attempts import Operation, Request, Response, Step
from queryable_app.client.exceptions import DeadlineExceeded, QueryableTopicError
from queryable_app.client.placement_map import PlacementMap, parse_placement
from queryable_app.client.rows import json_of, parsed
from queryable_app.client.sender import Sender
from queryable_app.errors import Reason

_PLACEMENT: Final = "/v1/placement"
_REFRESH_SECONDS: Final = 30.0
_REFRESH_AGAIN_SECONDS: Final = 0.25  # the node that showed a newer epoch need not be the one that answered
_POLL_SECONDS: Final = 0.005
_ANY_NODES: Final = 3  # to try, for a read that any node can answer


class PlacementCache:
    """Keep the newest placement, and the sender that fetches it."""

    def __init__(
        self, urls: Sequence[str], clock: Callable[[], float], random: Random, retries: bool = True
    ) -> None:
        self._urls = tuple(urls)
        self._clock = clock
        self.sender = Sender(clock, random, self._observe, retries)
        self._turn = count(random.randrange(1000))
        self._placement: PlacementMap | None = None
        self._newest_epoch = 0  # of the cached application, in any response
        self._fetched_at = 0.0
        self._refresh_at = 0.0
        self._fetching_until = 0.0

    def placement(self, deadline: float) -> Operation[PlacementMap]:
        """Return the cached placement, after a refresh if it is due and no other request fetches it."""
        while True:
            now = self._clock()
            if self._placement is not None and (now < self._refresh_at or now < self._fetching_until):
                return self._placement
            if now >= deadline:
                raise DeadlineExceeded("the placement did not arrive in time", "raise deadline_ms")
            if now < self._fetching_until:
                yield Step((), min(deadline, now + _POLL_SECONDS))
                continue
            fetch_deadline = deadline if self._placement is None else now + (deadline - now) / 2
            self._fetching_until = fetch_deadline
            try:
                response = yield from self.sender.read(
                    lambda _: Request("GET", _PLACEMENT), self._placement_sources, fetch_deadline
                )
                fetched: PlacementMap = parsed(response, _placement_of)
            except QueryableTopicError:
                if self._placement is None:
                    raise
                self._refresh_at = self._clock() + 1
                return self._placement
            finally:
                self._fetching_until = 0.0
            return self._adopt(fetched)

    def owners(self, record: bytes, deadline: float) -> Operation[Sequence[str]]:
        """Return the addresses to try for a key: its replicas, then the URLs that the client was given."""
        owners = (yield from self.placement(deadline)).owners_of(record)
        if not owners:
            return (yield from self.any_node((), deadline))
        return _unique(owners + self._urls)

    def any_node(
        self, first: Sequence[str], deadline: float, turn: int | None = None
    ) -> Operation[Sequence[str]]:
        """Return the addresses to try for a read that any node can answer, in turn, after those in `first`. Reads with the same
        `turn` try the same node first."""
        nodes = (yield from self.placement(deadline)).nodes
        start = (next(self._turn) if turn is None else turn) % max(1, len(nodes))
        in_turn = self.sender.best_first(nodes[start:] + nodes[:start])
        return _unique((*first, *in_turn[:_ANY_NODES], *self._urls))

    def _placement_sources(self) -> Operation[Sequence[str]]:
        """Return the given URLs first: the service address decides which revision of a view is active."""
        yield from ()
        return _unique(self._urls + (() if self._placement is None else self._placement.nodes[:_ANY_NODES]))

    def _adopt(self, fetched: PlacementMap) -> PlacementMap:
        """Cache a fetched placement, unless its epoch is lower than the cached one's."""
        now, known = self._clock(), self._placement
        same = known is not None and known.application_id == fetched.application_id
        if known is None or not same or fetched.epoch >= known.epoch:
            self._placement = known = fetched
            self._newest_epoch = max(self._newest_epoch, fetched.epoch) if same else fetched.epoch
            self.sender.addresses.retain((*self._urls, *fetched.nodes))
        self._fetched_at = now
        behind = known.epoch < self._newest_epoch
        self._refresh_at = now + (_REFRESH_AGAIN_SECONDS if behind else _REFRESH_SECONDS)
        return known

    def _observe(self, response: Response) -> None:
        """Schedule a refresh if a response shows that the cached placement is old."""
        if self._placement is None:
            return
        epoch, application = response.headers.get("qt-epoch", ""), response.headers.get("qt-application")
        same = application in (None, self._placement.application_id)
        number = int(epoch) if epoch.isascii() and epoch.isdigit() and len(epoch) < 19 else 0
        newer = same and number > self._newest_epoch
        if newer:
            self._newest_epoch = number
        if newer or not same or response.status == Reason.WRONG_OWNER.status:
            self._refresh_at = min(self._refresh_at, self._fetched_at + _REFRESH_AGAIN_SECONDS)


def _placement_of(response: Response) -> PlacementMap:
    return parse_placement(json_of(response))


def _unique(addresses: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(addresses))
