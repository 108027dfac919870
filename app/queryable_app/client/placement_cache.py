"""Where the client believes things are: the placement, kept up to date, and whom to ask for what.

Strategy: the placement is fetched with the first request, and again when an answer shows a newer one, when a node does not
hold what it should, and every half minute, since a new revision of the view has other nodes altogether. One request at a
time does that, a little late itself; the others use the old one, with which every answer is right as well: whoever does
not hold a key forwards.
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
_FETCHING_SECONDS: Final = 0.005
_ANY_NODES: Final = 3  # that a read tries which any node can answer


class PlacementCache:
    def __init__(self, urls: Sequence[str], clock: Callable[[], float], random: Random) -> None:
        self._urls = tuple(urls)
        self._clock = clock
        self.asking = Sender(clock, random, self._notice)
        self._turn = count(random.randrange(1000))
        self._map: PlacementMap | None = None
        self._newest_epoch = 0  # of the application in `_map`, as far as answers have shown
        self._fetched_at = 0.0
        self._refresh_at = 0.0
        self._fetching_until = 0.0

    def placement(self, deadline: float) -> Operation[PlacementMap]:
        """The one that is known, made new where it must be. One request at a time does that; others use the old one."""
        while True:
            now = self._clock()
            if self._map is not None and (now < self._refresh_at or now < self._fetching_until):
                return self._map
            if now >= deadline:
                raise DeadlineExceeded(
                    "the placement is not there in time", "ask for more time with deadline_ms"
                )
            if now < self._fetching_until:  # another request is about to know it
                yield Step((), min(deadline, now + _FETCHING_SECONDS))
                continue
            patience = deadline if self._map is None else now + (deadline - now) / 2
            self._fetching_until = patience
            try:
                answer = yield from self.asking.ask(
                    lambda _: Request("GET", _PLACEMENT), self._anyone, patience
                )
                fetched: PlacementMap = parsed(answer, _placement_of)
            except QueryableTopicError:
                if self._map is None:
                    raise
                self._refresh_at = self._clock() + 1
                return self._map
            finally:
                self._fetching_until = 0.0
            return self._adopt(fetched)

    def _adopt(self, fetched: PlacementMap) -> PlacementMap:
        now, known = self._clock(), self._map
        same = known is not None and known.application_id == fetched.application_id
        if known is None or not same or fetched.epoch >= known.epoch:
            self._map = known = fetched
            self._newest_epoch = max(self._newest_epoch, fetched.epoch) if same else fetched.epoch
            self.asking.addresses.keep((*self._urls, *fetched.nodes))
        self._fetched_at = now
        behind = known.epoch < self._newest_epoch
        self._refresh_at = now + (_REFRESH_AGAIN_SECONDS if behind else _REFRESH_SECONDS)
        return known

    def _notice(self, answer: Response) -> None:
        """What an answer shows of the placement."""
        if self._map is None:
            return
        epoch, application = answer.headers.get("qt-epoch", ""), answer.headers.get("qt-application")
        mine = application in (None, self._map.application_id)
        number = int(epoch) if epoch.isascii() and epoch.isdigit() and len(epoch) < 19 else 0
        newer = mine and number > self._newest_epoch
        if newer:
            self._newest_epoch = number
        if newer or not mine or answer.status == Reason.WRONG_OWNER.status:
            self._refresh_at = min(self._refresh_at, self._fetched_at + _REFRESH_AGAIN_SECONDS)

    # Whom to ask.

    def owners(self, record: bytes, deadline: float) -> Operation[Sequence[str]]:
        owners = (yield from self.placement(deadline)).owners_of(record)
        if not owners:
            return (yield from self.any_node((), deadline))
        return _once(owners + self._urls)

    def any_node(self, first: Sequence[str], deadline: float) -> Operation[Sequence[str]]:
        nodes = (yield from self.placement(deadline)).nodes
        start = next(self._turn) % max(1, len(nodes))
        in_turn = self.asking.best_first(nodes[start:] + nodes[:start])
        return _once((*first, *in_turn[:_ANY_NODES], *self._urls))

    def _anyone(self) -> Operation[Sequence[str]]:
        """The service address first: which revision of a view is in force is for it to say."""
        yield from ()
        return _once(self._urls + (() if self._map is None else self._map.nodes[:_ANY_NODES]))


def _placement_of(answer: Response) -> PlacementMap:
    return parse_placement(json_of(answer))


def _once(addresses: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(addresses))
