"""Carry the bytes of one connection over TLS, between its socket and its protocol.

Strategy: OpenSSL reads from memory and writes to memory, so that each input is decrypted and each output encrypted by one
call. The event loop's own TLS takes several steps and 256 KiB of buffer for the same. An output goes to the socket at once,
unless an earlier one still waits for the client.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, cast

from queryable_app.serve.base.write_now import write_now

_RECORD_BYTES_MAX: Final = 1 << 14
"""A read that takes a whole record leaves nothing decrypted behind."""


class TlsConnection(asyncio.Transport, asyncio.Protocol):
    """Be the protocol of a socket's transport, and the transport of the protocol that `create_protocol` makes after the
    handshake."""

    def __init__(
        self,
        context: ssl.SSLContext,
        create_protocol: Callable[[], asyncio.Protocol],
        server_hostname: str | None = None,
    ) -> None:
        """Wait for the other side's handshake, or begin one with a server of this name."""
        super().__init__()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        is_server = server_hostname is None
        self._ssl = context.wrap_bio(self._incoming, self._outgoing, is_server, server_hostname)
        self._feed, self._read, self._encrypt = self._incoming.write, self._ssl.read, self._ssl.write
        self._encrypted = self._outgoing.read
        self._create_protocol = create_protocol
        self._protocol: asyncio.Protocol | None = None  # None: the handshake is not over
        self._raw: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._closing = False
        self._at_end = False  # the other side sends no more
        self._reading_paused = False
        self.opened: asyncio.Future[None] = self._loop.create_future()
        """Is done when the handshake is over. Fails with OSError."""

    async def open(self, connect: Callable[[Callable[[], asyncio.Protocol]], Any], seconds: float) -> None:
        """Connect by a method of the event loop, and wait until the handshake is over. Raises OSError, TimeoutError too."""
        try:
            async with asyncio.timeout(seconds):
                await connect(lambda: self)
                await self.opened
        except BaseException:
            self.abort()  # also if the handshake has just ended: the caller does not know of the connection
            raise

    # The protocol of the socket's transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = raw = cast(asyncio.Transport, transport)  # uvloop's is one in all but its class
        self._write_raw = partial(write_now, raw, transport.get_extra_info("socket").fileno())
        if not self._ssl.server_side:
            self._go_on_with_handshake()

    def data_received(self, data: bytes) -> None:
        self._feed(data)
        if self._protocol is not None or self._go_on_with_handshake():
            self._decrypt()

    def eof_received(self) -> bool:
        if self._protocol is None:
            self._fail(ConnectionResetError("the connection ended before the TLS handshake was over"))
        else:
            self._on_end()
        return True  # whether to close is decided here

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        if self._protocol is not None:
            self._protocol.connection_lost(exc)
        elif not self.opened.done():
            self.opened.set_exception(
                exc or ConnectionResetError("the connection ended during the TLS handshake")
            )

    def pause_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.resume_writing()

    # TLS.

    def _go_on_with_handshake(self) -> bool:
        """Go on with the handshake, and return whether it is over."""
        try:
            self._ssl.do_handshake()
        except ssl.SSLWantReadError:
            self._send()
            return False
        except ssl.SSLError as error:
            self._fail(error)
            return False
        self._send()
        if self.opened.done():  # too late
            return False
        self.opened.set_result(None)
        self._protocol = self._create_protocol()
        self._receive = self._protocol.data_received
        self._protocol.connection_made(self)
        return True

    def _decrypt(self) -> None:
        """Pass on what has arrived, record by record."""
        incoming = self._incoming
        while not self._at_end:
            try:
                data = self._read(_RECORD_BYTES_MAX)
            except ssl.SSLWantReadError:
                break
            except ssl.SSLZeroReturnError:
                data = b""
            except ssl.SSLError as error:
                self._fail(error)
                return
            if not data:
                self._on_end()
                return
            self._receive(data)
            if not incoming.pending or self._closing or self._reading_paused:
                break
        if self._outgoing.pending and not self._closing:  # records of TLS itself, such as a new key
            self._send()

    def _send(self) -> None:
        """Send what is encrypted now."""
        encrypted = self._encrypted()
        if encrypted:
            self._write_raw(encrypted)

    def _on_end(self) -> None:
        """Pass on that the other side sends no more, once."""
        assert self._protocol is not None
        if not self._at_end:
            self._at_end = True
            if not self._protocol.eof_received():
                self.close()

    def _fail(self, error: OSError) -> None:
        """End the connection with the alert that OpenSSL has ready for the other side."""
        if not self.opened.done():
            self.opened.set_exception(error)
        if self._raw is not None and not self._closing:
            self._closing = True
            self._send()
            self._raw.close()

    # The transport of the protocol.

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or not data:
            return
        try:
            sent = self._encrypt(data)
            while sent < len(data):  # OpenSSL may take a record at a time
                sent += self._encrypt(memoryview(data)[sent:])
        except ssl.SSLError as error:
            self._fail(error)
        else:
            self._send()

    def close(self) -> None:
        if self._closing or self._raw is None:
            return
        self._closing = True
        with suppress(ssl.SSLError):  # it would wait for the answer
            self._ssl.unwrap()
        self._send()
        self._raw.close()

    def abort(self) -> None:
        self._closing = True
        if self._raw is not None:
            self._raw.abort()

    def is_closing(self) -> bool:
        return self._closing

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None:
        assert self._raw is not None
        self._reading_paused = True
        self._raw.pause_reading()

    def resume_reading(self) -> None:
        assert self._raw is not None
        self._reading_paused = False
        if not self._closing:
            self._raw.resume_reading()
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Pass on what arrived before reading was paused."""
        if self._incoming.pending and not (self._closing or self._reading_paused):
            self._decrypt()

    def is_reading(self) -> bool:
        return not self._reading_paused and self._raw is not None and self._raw.is_reading()

    def get_write_buffer_size(self) -> int:
        return 0 if self._raw is None else self._raw.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert self._raw is not None
        self._raw.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "sslcontext":
            return self._ssl.context
        if name == "peercert":
            return self._ssl.getpeercert()
        return default if self._raw is None else self._raw.get_extra_info(name, default)
