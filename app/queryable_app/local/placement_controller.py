"""Move a run's replicas to the desired placement: observe the nodes, take the next step, and send it to them.

Strategy: `tick` never waits. A thread calls each node, so that a node that hangs delays no other. `placement.controller` decides
when the next step is due. A step is on disk before it is sent to a node.
"""

from __future__ import annotations

import json
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import httpx

from queryable_app.contract import PLACEMENT_PATH
from queryable_app.local.data_directory import DataDirectory
from queryable_app.placement.assignment import DesiredPlacement, Placement, settled
from queryable_app.placement.controller import NodeObservation, next_step, parse_observation, unresponsive

PLACEMENT_FILE: Final = "placement.json"

_SETTLED_POLL_SECONDS: Final = 1.0
_MOVING_POLL_SECONDS: Final = 0.25
_THREADS: Final = 16


class PlacementController:
    """Drive the placement of one run. It closes the client."""

    def __init__(
        self, data: DataDirectory, placement: Placement, desired: DesiredPlacement, http: httpx.Client
    ) -> None:
        self.placement = placement
        """The newest placement."""
        self._desired = desired
        self._data = data
        self._reached = False
        self._observations: dict[int, NodeObservation] = {}
        self._calls: dict[int, Future[NodeObservation]] = {}
        self._next_call_at: dict[int, float] = {}
        self._refusals: dict[int, str] = {}
        self._http = http
        self._threads = ThreadPoolExecutor(_THREADS, "placement-controller")
        self._write()

    @property
    def settled(self) -> bool:
        """Whether the placement is the desired one, and every node follows it."""
        return self._reached and self.followed

    @property
    def followed(self) -> bool:
        """Whether every node follows the newest placement."""
        return all(self.follows_newest(ordinal) for ordinal in range(len(self.placement.addresses)))

    def follows_newest(self, ordinal: int) -> bool:
        """Return whether this node follows the newest placement."""
        observation = self._observations.get(ordinal)
        return observation is not None and observation.epoch >= self.placement.epoch

    def set_desired(self, desired: DesiredPlacement) -> None:
        self._desired, self._reached = desired, False

    def tick(self) -> list[str]:
        """Collect the responses, take a step if one is due, and call the nodes again. Return each new refusal as a line."""
        now = time.monotonic()
        observed, refusals = self._collect()
        if observed:
            step = next_step(self.placement, self._desired, self._observations, now)
            self._reached = step is self.placement and settled(step, self._desired)
            if step is not self.placement:
                self.placement = step
                self._write()
        for ordinal, address in enumerate(self.placement.addresses):
            if ordinal not in self._calls and now >= self._next_call_at.get(ordinal, now):
                pause = _SETTLED_POLL_SECONDS if self.settled else _MOVING_POLL_SECONDS
                self._next_call_at[ordinal] = now + pause
                self._calls[ordinal] = self._threads.submit(self._call, address, self.placement)
        return refusals

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)
        self._http.close()

    def _collect(self) -> tuple[bool, list[str]]:
        """Return whether a node has answered since the last tick, and which nodes newly refuse the placement."""
        observed: dict[int, NodeObservation] = {}
        refusals = []
        for ordinal in [ordinal for ordinal, call in self._calls.items() if call.done()]:
            call = self._calls.pop(ordinal)
            error = (
                call.exception()
            )  # most often the node starts or is unreachable; the next call may succeed
            if error is None:
                observed[ordinal] = call.result()
                continue
            if ordinal in self._observations:
                self._observations[ordinal] = unresponsive(self._observations[ordinal])
            if isinstance(error, httpx.HTTPStatusError) and self._refusals.get(ordinal) != str(error):
                self._refusals[ordinal] = str(error)
                refusals.append(f"Node {ordinal} does not take the placement: {error.response.text[:300]}")
        nodes = len(self.placement.addresses)
        self._observations = {o: seen for o, seen in (self._observations | observed).items() if o < nodes}
        return bool(observed), refusals

    def _call(self, address: str, placement: Placement) -> NodeObservation:
        """Send a node the placement if it has an older one, and return its status. Runs in a thread."""
        status = self._http.get(f"{address}/v1/status").raise_for_status().json()
        if status["epoch"] < placement.epoch:
            self._http.put(f"{address}{PLACEMENT_PATH}", content=placement.to_json()).raise_for_status()
            status = self._http.get(f"{address}/v1/status").raise_for_status().json()
        return parse_observation(status, time.monotonic())

    def _write(self) -> None:
        self._data.write(PLACEMENT_FILE, json.loads(self.placement.to_json()))
