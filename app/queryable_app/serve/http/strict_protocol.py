"""Parse HTTP/1.1 strictly, a few kilobytes at a time.

Strategy: extend uvicorn's protocol where it and httptools are lenient. httptools ends a message at an `Upgrade` header and
takes the body for the next message; such a head is parsed again without that header, so a body always belongs to its
request. Heads follow RFC 9112 to the letter where a proxy in front of a node could read them differently. Input beyond
one time slice waits in `unparsed` while earlier requests are answered and other connections are served.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, Final

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from queryable_app.errors import Failure, Reason, invalid

_PIECE_BYTES: Final = 8192
_SLICE_SECONDS: Final = 0.002  # parsing time of one connection before the event loop goes on
_UNPARSED_BYTES_MAX: Final = 64 * 1024  # beyond it the protocol stops reading from the socket
_CHUNK_FRAMING_BYTES: Final = 16  # a chunk's size, two line ends, and a little more
_VERSIONS: Final = ("1.1", "1.0")


class StrictProtocol(HttpToolsProtocol):
    """Parse requests. `BoundedProtocol` completes this class."""

    head_bytes_max: ClassVar[int]
    unparsed = b""  # received, not parsed yet
    resume_scheduled = False  # `resume_parsing` runs in the next iteration of the event loop
    refusal: Failure | None = None  # once set, input is no longer parsed

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.in_body = False
        self.hosts = 0
        self.head_bytes = 0
        self.framing_bytes = 0  # bytes of the current message that are not body
        self.body_bytes = self.chunks = 0  # in the current piece
        self.message_began = False  # a message or a body begins in the current piece

    def refuse(self, failure: Failure) -> None:
        """Answer earlier requests, then send the failure; parse no more input."""
        raise NotImplementedError

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _Flow(transport, self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.unparsed = b""
        super().connection_lost(exc)

    # Input, in pieces.

    def data_received(self, data: bytes) -> None:
        if self._stopped():
            return
        if len(data) <= _PIECE_BYTES:
            self._parse(data)
            return
        view = memoryview(data)
        until = self.loop.time() + _SLICE_SECONDS
        for at in range(0, len(data), _PIECE_BYTES):
            if at and (self.pipeline or self.loop.time() > until):
                self.buffer_input(data[at:])
                if not self.pipeline:  # otherwise `on_response_complete` resumes parsing
                    self.resume_parsing_soon()
                return
            self._parse(view[at : at + _PIECE_BYTES])
            if self._stopped():
                return

    def _stopped(self) -> bool:
        return self.refusal is not None

    def buffer_input(self, data: bytes) -> None:
        self.unparsed += data
        if len(self.unparsed) > _UNPARSED_BYTES_MAX:
            self.flow.pause_reading()

    def resume_parsing_soon(self) -> None:
        if not self.resume_scheduled:
            self.resume_scheduled = True
            self.loop.call_soon(self.resume_parsing)

    def resume_parsing(self) -> None:
        self.resume_scheduled = False
        if self.unparsed:
            data, self.unparsed = self.unparsed, b""
            self.data_received(data)
            if not self.unparsed and not self.pipeline:
                self.flow.resume_reading()

    def _parse(self, piece: bytes | memoryview) -> None:
        self.body_bytes = self.chunks = 0
        self.message_began = False
        try:
            self._feed(piece)
        except httptools.HttpParserError as error:
            cause = error.__context__  # one of the callbacks below raised it
            self.refuse(cause if isinstance(cause, Failure) else self._not_http(error))
            return
        if self.message_began:  # the piece may contain the end of the previous message or of the head
            self.framing_bytes = 0
            return
        framing = len(piece) - self.body_bytes - _CHUNK_FRAMING_BYTES * self.chunks
        self.framing_bytes = max(0, self.framing_bytes + framing)
        if self.framing_bytes > self.head_bytes_max:
            self.refuse(self._head_too_large() if not self.in_body else self._framing_too_large())

    def _feed(self, piece: bytes | memoryview) -> None:
        """Feed the parser. If it stops at an upgrade, parse the head again without the upgrade header."""
        while True:
            try:
                self.parser.feed_data(piece)
                return
            except httptools.HttpParserUpgrade as stopped:
                piece = memoryview(piece)[stopped.args[0] :]
                head = self._head_without_upgrade()
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
                self.parser.feed_data(head)

    def _head_without_upgrade(self) -> bytes:
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
        lines += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    # Callbacks of the parser.

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.in_body = False
        self.message_began = True
        self.hosts = self.head_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.in_body:
            return  # trailers are ignored
        name, value = name.lower(), value.strip(b" \t")
        self.head_bytes += len(name) + len(value) + 4
        if name == b"host":
            self.hosts += 1
        elif name == b"transfer-encoding":
            if value.lower() != b"chunked":
                raise invalid("Transfer-Encoding", "is not chunked", "send the body as it is, or in chunks")
            if self.parser.get_http_version() == "1.0":
                raise invalid("Transfer-Encoding", "is not part of HTTP/1.0", "send HTTP/1.1")
        elif name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self.head_bytes + len(self.url) > self.head_bytes_max:
            raise self._head_too_large()
        version = self.parser.get_http_version()
        if version not in _VERSIONS:
            raise invalid("request", f"is HTTP/{version}", "send HTTP/1.1")
        if self.hosts != 1 and (self.hosts or version == "1.1"):
            raise invalid("Host", f"is given {self.hosts} times", "give it once")
        if self.parser.get_method() == b"CONNECT":
            raise invalid("method", "CONNECT is not supported: a node is no proxy", "use GET, HEAD or POST")
        if self.parser.should_upgrade():
            return  # `_feed` parses this head again
        self.in_body = self.message_began = True
        self.on_request_head()
        super().on_headers_complete()

    def on_request_head(self) -> None:
        """Handle a head that is complete and valid."""

    def on_chunk_header(self) -> None:
        self.chunks += 1

    def on_body(self, body: bytes) -> None:
        self.body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        super().on_message_complete()
        self.in_body = False
        self.on_request_complete()

    def on_request_complete(self) -> None:
        """Handle the end of a request's body."""

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.unparsed and not self.pipeline:
            self.resume_parsing_soon()  # not now: the parser may be the caller

    # Refusals.

    def _not_http(self, error: httptools.HttpParserError) -> Failure:
        if self.parser.get_method() == b"PRI":
            return invalid("request", "is HTTP/2", "send HTTP/1.1")
        return invalid(
            "request",
            f"does not follow HTTP/1.1 ({error})",
            "check the client, and any proxy between it and this node",
        )

    def _head_too_large(self) -> Failure:
        return Failure(
            Reason.TOO_LARGE,
            f"request line and headers are longer than {self.head_bytes_max} bytes",
            "send fewer or shorter headers; send many or long keys in the body of POST /v1/multi-get",
        )

    def _framing_too_large(self) -> Failure:
        limit = self.head_bytes_max
        return invalid("body", f"has more than {limit} bytes of trailers or chunk extensions", "send none")


class _Flow(FlowControl):
    """Keep uvicorn from reading more of a connection while too much of its input is unparsed."""

    def __init__(self, transport: asyncio.Transport, protocol: StrictProtocol) -> None:
        super().__init__(transport)
        self._protocol = protocol

    def resume_reading(self) -> None:
        if len(self._protocol.unparsed) <= _UNPARSED_BYTES_MAX:
            super().resume_reading()
