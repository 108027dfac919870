"""Follow the change feed of running nodes, from whichever answers, and keep what it says of each key or window."""

from __future__ import annotations

import json
from typing import Any

import httpx

from queryable_app.wire.times import parse_time
from tests.integration.system import System

_NDJSON = {"accept": "application/x-ndjson"}


class Follower:
    """Fold the changes of a view, page by page."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._next = "start"
        self.rows: dict[str, Any] = {}
        self.windows: dict[tuple[bytes, int, int], Any] = {}
        """By key, start and end."""

    def move_to(self, system: System) -> None:
        """Continue at the nodes of another revision."""
        self._system = system

    def read(self, node: int) -> bool:
        """Read a page from a node. Return whether it had changes; a node that does not answer has none."""
        try:
            answer = self._system.get(f"/v1/changes?from={self._next}&wait-ms=0", node, headers=_NDJSON)
        except httpx.TransportError:
            return False
        if answer.status_code in (503, 504):
            return False
        assert answer.status_code == 200, answer.text
        *changes, last = map(json.loads, answer.text.splitlines())
        self._next = last["next"]
        for change in changes:
            if "window" in change:
                self._take_window(change)
            elif change.get("deleted"):
                self.rows.pop(change["key"], None)
            elif "key" in change:
                self.rows[change["key"]] = change["value"]
        return bool(changes)

    def read_to_end(self, node: int) -> None:
        while self.read(node):
            pass

    def _take_window(self, change: dict[str, Any]) -> None:
        key, start = change["key"].encode(), parse_time(change["window"]["start"])
        for window in [each for each in self.windows if each[:2] == (key, start)]:
            del self.windows[window]
        if not change.get("deleted"):
            end = parse_time(change["window"]["end"])
            assert start is not None
            assert end is not None
            self.windows[key, start, end] = change["value"]
