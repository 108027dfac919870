"""Write to the socket of a connection before the event loop does."""

from __future__ import annotations

import asyncio
import os


def write_now(transport: asyncio.Transport, descriptor: int, data: bytes) -> None:
    """Write now, behind what the transport still has. By itself it would wait until all input that has arrived is handled, and so
    would the other side.

    The transport has the socket of `descriptor` until it calls `connection_lost`; afterwards the number may be of another one.
    """
    if transport.get_write_buffer_size():
        transport.write(data)
        return
    try:
        sent = os.write(descriptor, data)
    except OSError:  # a full buffer, or a lost connection: the transport waits, or finds out why
        sent = 0
    if sent < len(data):
        transport.write(data[sent:])
