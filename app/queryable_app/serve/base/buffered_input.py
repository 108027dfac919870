"""Take what TLS connections decrypt by a buffer.

Strategy: to a protocol without a buffer, the event loop passes each input in an object that it first makes as large as the
greatest input can be, 256 KiB. glibc maps each of these from the system and returns it, which costs more than the rest of a
read. So TLS connections get a protocol with a buffer, which passes a copy of what is in it to the real protocol.
"""

from __future__ import annotations

import asyncio
from typing import Final

_BYTES: Final = 1 << 16
"""What a connection takes at once. More waits until the event loop has served its other connections."""


def input_buffer() -> memoryview:
    """Return a buffer. Connections of one event loop can share it: the loop fills it and passes it on in one step."""
    return memoryview(bytearray(_BYTES))


class BufferedInput(asyncio.BufferedProtocol):
    """Stand between a TLS connection and its protocol."""

    def __init__(self, protocol: asyncio.Protocol, buffer: memoryview) -> None:
        self._buffer = buffer
        self._receive = protocol.data_received
        self.connection_made = protocol.connection_made  # type: ignore[method-assign]
        self.connection_lost = protocol.connection_lost  # type: ignore[method-assign]
        self.eof_received = protocol.eof_received  # type: ignore[method-assign]
        self.pause_writing = protocol.pause_writing  # type: ignore[method-assign]
        self.resume_writing = protocol.resume_writing  # type: ignore[method-assign]

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._receive(bytes(self._buffer[:nbytes]))
