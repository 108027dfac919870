"""Follow the changes of a view: what a client has read, and the changes that are ready.

Strategy: the client asks for a page at a time, and a node that has no changes waits for some before it answers. A page ends with
the position where the next one begins, which any node takes. So the loss of a node is one more attempt.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote_from_bytes

from queryable_app.client.attempts import Response
from queryable_app.client.exceptions import InvalidRequest
from queryable_app.client.keys import Key, in_request, record_key
from queryable_app.client.placement_map import PlacementMap
from queryable_app.client.rows import key_of
from queryable_app.client.selection import selection_parameters
from queryable_app.wire.json_text import read_document, read_stored
from queryable_app.wire.times import parse_time

WAIT_SECONDS: Final = 10.0
"""How long a node waits for the first change of a page."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a key."""

    key: Key
    value: Any
    """Decoded JSON; None if the key was deleted."""
    deleted: bool
    partition: int
    offset: int
    timestamp: int
    compacted: bool
    """It stands for all changes of its key that the view does not have any more."""
    window_start_ms: int | None = None
    """When the window starts that changed, in ms since 1970, in a view with windows."""
    window_end_ms: int | None = None
    """When it ends; None if it was deleted."""


@dataclass(slots=True)
class Following:
    """Keep what a client follows, where the next page begins, and the changes that are ready."""

    key: Key | None
    prefix: str | bytes | None
    selection: Sequence[str]
    """Parameters that select changes."""
    position: str
    """The end of the page that was read last."""
    turn: int
    """Which node is tried first: each keeps the newest changes for its clients."""
    read_to: str = ""
    """The position of the client: everything before it has been given to the program."""
    ready: deque[Change] = field(default_factory=deque)
    compacted_until: dict[int, int] = field(default_factory=dict)

    def target(self, placement: PlacementMap, wait_seconds: float) -> tuple[str, list[str]]:
        """Return the path and the parameters of the next page."""
        parameters = [f"from={self.position}", f"wait-ms={int(wait_seconds * 1000)}", *self.selection]
        if self.key is not None:
            texts, encoding = in_request([record_key(self.key, placement.codec)], placement.codec)
            parameters += [f"key={texts[0]}", *encoding]
        if self.prefix is not None:
            raw = self.prefix.encode() if isinstance(self.prefix, str) else self.prefix
            parameters += [f"prefix={quote_from_bytes(raw, safe='')}"]
        return "/v1/changes", parameters

    def add(self, response: Response) -> None:
        """Take in the page that was read. Raises KeyError, TypeError or ValueError if it is none."""
        lines = [_decoded(line) for line in response.body.split(b"\n") if line]
        changes = []
        for line in lines[:-1]:
            about = line.get("compacted")
            if about is not None:
                self.compacted_until[int(about["partition"])] = int(about["until"])
            else:
                changes.append(self._change(line))
        position = lines[-1]["next"]
        if not isinstance(position, str):
            raise ValueError(position)
        self.ready.extend(changes)
        self.position = position

    def take(self) -> Change | None:
        """Return the next change that is ready, or None."""
        if not self.ready:
            self.read_to = self.position
            return None
        return self.ready.popleft()

    def _change(self, line: Mapping[str, Any]) -> Change:
        partition, offset = int(line["partition"]), int(line["offset"])
        window = line.get("window", {})
        return Change(
            key_of(line),
            line["value"],
            line.get("deleted") is True,
            partition,
            offset,
            int(line["timestamp"]),
            offset < self.compacted_until.get(partition, 0),
            _time(window.get("start")),
            _time(window.get("end")),
        )


def new_following(
    key: Key | None, prefix: str | bytes | None, where: str | None, start: str, turn: int
) -> Following:
    """Return the changes from a position on. Raises InvalidRequest."""
    if key is not None and prefix is not None:
        raise InvalidRequest("prefix: is given beside key", "follow one key, or the keys with a prefix")
    return Following(key, prefix, selection_parameters(where), start, turn, read_to=start)


def _time(text: str | None) -> int | None:
    return None if text is None else parse_time(text)


def _decoded(line: bytes) -> Any:
    try:
        return json.loads(line)
    except RecursionError:
        return read_document(line, read_stored)
