"""Ingest's end of the control socket: JSON, one object a line. docs/protocols.md has the messages."""

from __future__ import annotations

import json
import os
import select
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from queryable_app.contract import CONTROL_PROTOCOL, ObservedTopic

_LINE_BYTES_MAX: Final = 16 * 1024 * 1024
_SEND_SECONDS_MAX: Final = 10.0


class ServeGone(Exception):
    """Serve has closed the connection, or does not take what is sent."""


class Superseded(Exception):
    """Serve has taken a newer ingest in this one's place. Coming back would take the place away again, and so on for ever."""


class Control:
    """One connection."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._rest = b""
        try:
            self._socket.connect(str(path))
        except OSError as error:
            self._socket.close()
            raise ServeGone(f"serve does not listen on {path}") from error
        self._socket.settimeout(_SEND_SECONDS_MAX)
        self._send({"type": "hello", "protocol": CONTROL_PROTOCOL, "pid": os.getpid()})

    def close(self) -> None:
        self._socket.close()

    def tell_topic(self, topic: ObservedTopic | None) -> None:
        if topic is None:
            self._send({"type": "topic", "id": None})
            return
        offsets = {
            name: {str(partition): offset for partition, offset in which.items()}
            for name, which in (("earliest", topic.earliest), ("latest", topic.latest))
        }
        self._send({"type": "topic", "id": topic.id, "partitions": topic.partitions, **offsets})

    def tell_state(self, state: str, mode: str, detail: str, starts: int, reason: str = "") -> None:
        """`reason` is of a failure that waiting cannot mend."""
        message = {"type": "state", "state": state, "mode": mode, "detail": detail, "starts": starts}
        self._send(message | ({"reason": reason} if reason else {}))

    def receive(self, seconds: float) -> list[Mapping[str, Any]]:
        """The messages that are there, or that come before the time is over. Raises Superseded as soon as it is said."""
        if not select.select([self._socket], [], [], seconds)[0]:
            return []
        try:
            received = self._socket.recv(1 << 16)
        except OSError as error:
            raise ServeGone(str(error)) from error
        if not received:
            raise ServeGone("serve has closed the connection")
        *lines, self._rest = (self._rest + received).split(b"\n")
        if len(self._rest) > _LINE_BYTES_MAX:
            raise ServeGone(f"serve sent a line of more than {_LINE_BYTES_MAX} bytes")
        messages = [json.loads(line) for line in lines]
        if any(message["type"] == "superseded" for message in messages):
            raise Superseded("a newer ingest has taken over")
        return messages

    def _send(self, message: Mapping[str, Any]) -> None:
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            while self.receive(0):  # serve's last words say why
                pass
            raise ServeGone(str(error)) from error
