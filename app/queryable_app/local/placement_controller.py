"""Carries a placement to where it is wanted: looks at the nodes, takes the next step, tells them of it.

Strategy: whoever calls `tick` never waits; each node is asked by a thread, so that one that hangs holds up nothing. When a
step is taken is decided by `placing`. It is on the disk before any node hears of it.
"""

from __future__ import annotations

import json
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import httpx

from queryable_app.contract import NODE_HEADER, PLACEMENT_PATH
from queryable_app.local.data_directory import DataDirectory
from queryable_app.placement.assignment import DesiredPlacement, Placement, settled
from queryable_app.placement.controller import NodeObservation, next_step, parse_observation, unresponsive

PLACEMENT_FILE: Final = "placement.json"

_SETTLED_SECONDS: Final = 1.0  # between two looks at a node
_MOVING_SECONDS: Final = 0.25
_ANSWER_SECONDS: Final = 2.0
_THREADS: Final = 16


class PlacementController:
    def __init__(self, data: DataDirectory, placement: Placement, wanted: DesiredPlacement) -> None:
        self.placement = placement
        """The newest one."""
        self.wanted = wanted
        self._data = data
        self._arrived = False
        self._seen: dict[int, NodeObservation] = {}
        self._asking: dict[int, Future[NodeObservation]] = {}
        self._due: dict[int, float] = {}
        self._refused: dict[int, str] = {}
        token = data.internal_token().read_text()
        self._http = httpx.Client(timeout=_ANSWER_SECONDS, trust_env=False, headers={NODE_HEADER: token})
        self._threads = ThreadPoolExecutor(_THREADS, "placer")
        self._write()

    @property
    def settled(self) -> bool:
        """Whether the placement is as wanted, and every node knows it."""
        return self._arrived and self.known

    @property
    def known(self) -> bool:
        """Whether every node follows the newest placement."""
        return all(self.follows_newest(ordinal) for ordinal in range(len(self.placement.addresses)))

    def follows_newest(self, ordinal: int) -> bool:
        return ordinal in self._seen and self._seen[ordinal].epoch >= self.placement.epoch

    def follow(self, wanted: DesiredPlacement) -> None:
        self.wanted, self._arrived = wanted, False

    def tick(self) -> list[str]:
        """Hears what was answered, takes a step if there is one, and asks again whom it is time to ask. Returns which nodes
        refuse the placement, in words and once."""
        now = time.monotonic()
        heard, refusals = self._heard()
        if heard:
            following = next_step(self.placement, self.wanted, self._seen, now)
            self._arrived = following is self.placement and settled(following, self.wanted)
            if following is not self.placement:
                self.placement = following
                self._write()
        for ordinal, address in enumerate(self.placement.addresses):
            if ordinal not in self._asking and now >= self._due.get(ordinal, now):
                self._due[ordinal] = now + (_SETTLED_SECONDS if self.settled else _MOVING_SECONDS)
                self._asking[ordinal] = self._threads.submit(self._ask, address, self.placement)
        return refusals

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)
        self._http.close()

    def _heard(self) -> tuple[bool, list[str]]:
        """Whether a node has answered since the last time, and what is new of those that refuse."""
        answers: dict[int, NodeObservation] = {}
        refusals = []
        for ordinal in [ordinal for ordinal, asked in self._asking.items() if asked.done()]:
            asked = self._asking.pop(ordinal)
            error = asked.exception()  # most often it is away or starts; it will be asked again
            if error is None:
                answers[ordinal] = asked.result()
                continue
            if ordinal in self._seen:
                self._seen[ordinal] = unresponsive(self._seen[ordinal])
            if isinstance(error, httpx.HTTPStatusError) and self._refused.get(ordinal) != str(error):
                self._refused[ordinal] = str(error)
                refusals.append(f"Node {ordinal} does not take the placement: {error.response.text[:300]}")
        nodes = len(self.placement.addresses)
        self._seen = {o: seen for o, seen in (self._seen | answers).items() if o < nodes}
        return bool(answers), refusals

    def _ask(self, address: str, placement: Placement) -> NodeObservation:
        """Looks at a node, after telling it of the placement if it has an older one. In a thread."""
        status = self._http.get(f"{address}/v1/status").raise_for_status().json()
        if status["epoch"] < placement.epoch:
            self._http.put(f"{address}{PLACEMENT_PATH}", content=placement.to_json()).raise_for_status()
            status = self._http.get(f"{address}/v1/status").raise_for_status().json()
        return parse_observation(status, time.monotonic())

    def _write(self) -> None:
        self._data.write(PLACEMENT_FILE, json.loads(self.placement.to_json()))
