"""Provide one TCP connection on which a test writes exact bytes and reads whole HTTP answers."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple


class WireAnswer(NamedTuple):
    """Contain one answer: the status, headers in lower case, and the body without its framing."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def reason(self) -> str:
        """Return the reason of a problem, or nothing."""
        problem = self.headers.get("content-type") == "application/problem+json"
        return str(self.json()["reason"]) if problem else ""


class Wire:
    """Allow `send` and `answer` in any order. A read beyond the time limit raises TimeoutError."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._reader = connection.makefile("rb")

    def send(self, *pieces: bytes) -> None:
        """Send each piece by itself."""
        for piece in pieces:
            self.connection.sendall(piece)

    def half_close(self) -> None:
        """Close the sending side, and go on reading."""
        self.connection.shutdown(socket.SHUT_WR)

    def answer(self, *, head: bool = False) -> WireAnswer:
        """Read one answer; `head` says that it answers a HEAD request. Raises EOFError if the node closes first."""
        found = self._answer(head)
        if found is None:
            raise EOFError("the node closed the connection and did not answer")
        return found

    def answers(self) -> list[WireAnswer]:
        """Read all answers until the node closes the connection."""
        found = []
        while (answer := self._answer(False)) is not None:
            found.append(answer)
        return found

    def _answer(self, head: bool) -> WireAnswer | None:
        status_line = self._reader.readline()
        if not status_line:
            return None
        assert status_line.startswith(b"HTTP/1.1 "), status_line
        status = int(status_line[9:12])
        headers = {}
        while (line := self._reader.readline()) != b"\r\n":
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip()
        if status == 100:
            return self._answer(head)
        return WireAnswer(status, headers, b"" if head or status == 304 else self._body(headers))

    def _body(self, headers: dict[str, str]) -> bytes:
        if headers.get("transfer-encoding") != "chunked":
            return self._whole(int(headers["content-length"]))
        chunks = []
        while size := int(self._reader.readline(), 16):
            chunks.append(self._whole(size))
            self._reader.readline()
        self._reader.readline()
        return b"".join(chunks)

    def _whole(self, size: int) -> bytes:
        read = self._reader.read(size)
        assert len(read) == size, f"the answer ends after {len(read)} of {size} bytes"
        return read


@contextmanager
def wire(port: int, timeout: float = 30) -> Iterator[Wire]:
    """Open a connection to a port of this machine."""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        opened = Wire(connection)
        try:
            yield opened
        finally:
            opened._reader.close()


def request(method: bytes, target: bytes, *header_lines: bytes, body: bytes | None = None) -> bytes:
    """Return a request with a Host. A body is sent with its length unless the header lines say Transfer-Encoding."""
    lines = [b"%b %b HTTP/1.1" % (method, target), b"Host: node", *header_lines]
    if body is not None and not any(line.lower().startswith(b"transfer-encoding:") for line in header_lines):
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join([*lines, b"", body or b""])
