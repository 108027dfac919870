"""Classify the header lines of a request: which of them leave a point read unchanged.

Strategy: clients on kept-alive connections, and other nodes, repeat the same lines in every request. So a block of header
lines is looked up by its bytes and parsed only once. A block with any line that may matter goes to uvicorn's parser.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from typing import Final, Protocol, TypeVar

from queryable_app.contract import NODE_HEADER
from queryable_app.policy.freshness import DEADLINE_MS_MAX
from queryable_app.serve.peers.peers import DEADLINE_HEADER, FORWARDED_HEADER

_HEADER_LINES: Final = re.compile(rb"\r\n(?:[A-Za-z0-9_-]+:[\t\x20-\x7e]*\r\n)+\r\n")
T = TypeVar("T")

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
    """Say what a block of header lines means for its request."""

    PLAIN = "plain"
    FORWARDED = "forwarded"  # a plain read that another node forwards
    FROM_NODE = "from-node"  # another node's own request
    OTHER = "other"


def classify_head(block: bytes, accepts_token: Callable[[str], bool]) -> HeadKind:
    """Classify a block of header lines. A wrong node token makes it OTHER; the route then refuses it."""
    if _HEADER_LINES.fullmatch(block) is None:
        return HeadKind.OTHER
    node_headers: dict[str, str] = {}
    hosts = 0
    for line in block[2:-4].split(b"\r\n"):
        raw_name, _, raw_value = line.partition(b":")
        name, value = raw_name.lower(), raw_value.strip(b" \t")
        hosts += name == b"host"
        if name.startswith(b"qt-"):
            if name.decode() in node_headers:
                return HeadKind.OTHER
            node_headers[name.decode()] = value.decode()
        elif name in _NEVER_PLAIN or value.lower() not in _PLAIN_VALUES.get(name, (value.lower(),)):
            return HeadKind.OTHER
    if hosts != 1:
        return HeadKind.OTHER
    if not node_headers:
        return HeadKind.PLAIN
    if node_headers.keys() == {FORWARDED_HEADER, DEADLINE_HEADER}:
        deadline_ms = node_headers[DEADLINE_HEADER]
        well_formed = (
            deadline_ms.isdigit() and len(deadline_ms) <= 5 and 0 < int(deadline_ms) <= DEADLINE_MS_MAX
        )
        return (
            HeadKind.FORWARDED
            if well_formed and accepts_token(node_headers[FORWARDED_HEADER])
            else HeadKind.OTHER
        )
    if node_headers.keys() == {NODE_HEADER} and accepts_token(node_headers[NODE_HEADER]):
        return HeadKind.FROM_NODE
    return HeadKind.OTHER


class Heads(Protocol):
    """Map the bytes of a block of header lines to its kind."""

    def __getitem__(self, block: bytes, /) -> HeadKind: ...

    def get(self, block: bytes, /) -> HeadKind | None: ...


class BlockCache(dict[bytes, T]):
    """Map the bytes of a block of header lines to what `classify` finds in it on the first look-up."""

    def __init__(self, classify: Callable[[bytes], T]) -> None:
        super().__init__()
        self._classify = classify

    def __missing__(self, block: bytes) -> T:
        if len(self) >= _BLOCKS_MAX:
            self.clear()
        found = self[block] = self._classify(block)
        return found


class HeadCache(BlockCache[HeadKind]):
    """Map the bytes of a block of header lines to its kind."""

    def __init__(self, accepts_token: Callable[[str], bool]) -> None:
        super().__init__(lambda block: classify_head(block, accepts_token))


class HeadsOfNodes:
    """Map the bytes of a block of header lines to its kind: OTHER unless it is of another node."""

    def __init__(self, heads: Heads) -> None:
        self._heads = heads

    def __getitem__(self, block: bytes, /) -> HeadKind:
        kind = self._heads[block]
        return HeadKind.OTHER if kind is HeadKind.PLAIN else kind

    def get(self, block: bytes, /) -> HeadKind | None:
        kind = self._heads.get(block)
        return None if kind is HeadKind.PLAIN else kind
