"""Write to the socket of a connection before the event loop does."""

from __future__ import annotations

import asyncio
import os
from typing import Final

NO_SOCKET: Final = -1  # of a connection whose bytes do not go through its socket as they are


def write_now(transport: asyncio.Transport, descriptor: int, data: bytes) -> None:
    """Write now, behind what the transport still has. By itself it would wait until all input that has arrived is handled, and so
    would the other side.

    The transport has the socket of `descriptor` until it calls `connection_lost`; afterwards the number may be of another one.
    With NO_SOCKET the transport writes.
    """
    if descriptor == NO_SOCKET or transport.get_write_buffer_size():
        transport.write(data)
        return
    try:
        sent = os.write(descriptor, data)
    except OSError:  # a full buffer, or a lost connection: the transport waits, or finds out why
        sent = 0
    if sent < len(data):
        transport.write(data[sent:])
