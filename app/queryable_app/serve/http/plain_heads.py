"""Whether the header lines of a request leave a point read what it is without them.

Strategy: clients on kept-alive connections, and other nodes, send the same lines again and again, so whether a block of
them is plain is looked up by its bytes, not parsed. What is not known to mean nothing is uvicorn's to judge.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from typing import Final

from queryable_app.contract import NODE_HEADER
from queryable_app.policy.freshness import DEADLINE_MS_MAX
from queryable_app.serve.peers.peers import DEADLINE_HEADER, FORWARDED_HEADER

_HEADER_LINES: Final = re.compile(rb"\r\n(?:[A-Za-z0-9_-]+:[\t\x20-\x7e]*\r\n)+\r\n")
_BLOCKS_MAX: Final = 1024
_PLAIN_VALUES: Final = {b"accept": (b"*/*", b"application/json"), b"connection": (b"keep-alive",)}
_NEVER_PLAIN: Final = (
    b"authorization",
    b"content-encoding",
    b"content-length",
    b"expect",
    b"if-none-match",
    b"proxy-connection",
    b"transfer-encoding",
    b"upgrade",
)


class HeadKind(Enum):
    """What a block of header lines says of its request."""

    PLAIN = "plain"
    FORWARDED = "forwarded"  # by another node, and plain but for that
    FROM_NODE = "from-node"  # of another node's own
    OTHER = "other"


def classify_head(block: bytes, knows: Callable[[str], bool]) -> HeadKind:
    """`knows` tells the token of the view's nodes. A wrong one makes the request OTHER, and is refused there."""
    if _HEADER_LINES.fullmatch(block) is None:
        return HeadKind.OTHER
    marks: dict[str, str] = {}
    hosts = 0
    for line in block[2:-4].split(b"\r\n"):
        raw_name, _, raw_value = line.partition(b":")
        name, value = raw_name.lower(), raw_value.strip(b" \t")
        hosts += name == b"host"
        if name.startswith(b"qt-"):
            if name.decode() in marks:
                return HeadKind.OTHER
            marks[name.decode()] = value.decode()
        elif name in _NEVER_PLAIN or value.lower() not in _PLAIN_VALUES.get(name, (value.lower(),)):
            return HeadKind.OTHER
    if hosts != 1:
        return HeadKind.OTHER
    if not marks:
        return HeadKind.PLAIN
    if marks.keys() == {FORWARDED_HEADER, DEADLINE_HEADER}:
        deadline_ms = marks[DEADLINE_HEADER]
        well_formed = (
            deadline_ms.isdigit() and len(deadline_ms) <= 5 and 0 < int(deadline_ms) <= DEADLINE_MS_MAX
        )
        return HeadKind.FORWARDED if well_formed and knows(marks[FORWARDED_HEADER]) else HeadKind.OTHER
    if marks.keys() == {NODE_HEADER} and knows(marks[NODE_HEADER]):
        return HeadKind.FROM_NODE
    return HeadKind.OTHER


class HeadCache(dict[bytes, HeadKind]):
    """Blocks of header lines, by their bytes: the ones that were seen."""

    def __init__(self, knows: Callable[[str], bool]) -> None:
        super().__init__()
        self._knows = knows

    def __missing__(self, block: bytes) -> HeadKind:
        if len(self) >= _BLOCKS_MAX:
            self.clear()
        head = self[block] = classify_head(block, self._knows)
        return head
