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


class ServeDisconnected(Exception):
    """serve has closed the connection, or does not read from it."""


class Superseded(Exception):
    """A newer ingest has replaced this one. Reconnecting would replace the newer one, and so on for ever."""


class Control:
    """Hold one connection to serve."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._incomplete = b""
        try:
            self._socket.connect(str(path))
        except OSError as error:
            self._socket.close()
            raise ServeDisconnected(f"serve does not listen on {path}") from error
        self._socket.settimeout(_SEND_SECONDS_MAX)
        self._send({"type": "hello", "protocol": CONTROL_PROTOCOL, "pid": os.getpid()})

    def close(self) -> None:
        self._socket.close()

    def send_topic(self, topic: ObservedTopic | None) -> None:
        if topic is None:
            self._send({"type": "topic", "id": None})
            return
        offsets = {
            name: {str(partition): offset for partition, offset in which.items()}
            for name, which in (("earliest", topic.earliest), ("latest", topic.latest))
        }
        self._send(
            {
                "type": "topic",
                "id": topic.id,
                "partitions": topic.partitions,
                "compacted": topic.compacted,
                **offsets,
            }
        )

    def send_state(self, state: str, mode: str, detail: str, starts: int, reason: str = "") -> None:
        """Send the state; `reason` names a permanent failure."""
        message = {"type": "state", "state": state, "mode": mode, "detail": detail, "starts": starts}
        self._send(message | ({"reason": reason} if reason else {}))

    def receive(self, seconds: float) -> list[Mapping[str, Any]]:
        """Return the messages that have arrived, or that arrive within `seconds`. Raise Superseded when a message says so."""
        if not select.select([self._socket], [], [], seconds)[0]:
            return []
        try:
            received = self._socket.recv(1 << 16)
        except OSError as error:
            raise ServeDisconnected(str(error)) from error
        if not received:
            raise ServeDisconnected("serve has closed the connection")
        *lines, self._incomplete = (self._incomplete + received).split(b"\n")
        if len(self._incomplete) > _LINE_BYTES_MAX:
            raise ServeDisconnected(f"serve sent a line of more than {_LINE_BYTES_MAX} bytes")
        messages = [json.loads(line) for line in lines]
        if any(message["type"] == "superseded" for message in messages):
            raise Superseded("a newer ingest has taken over")
        return messages

    def _send(self, message: Mapping[str, Any]) -> None:
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            while self.receive(0):  # the messages that are left give the reason
                pass
            raise ServeDisconnected(str(error)) from error
