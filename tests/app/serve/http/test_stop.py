"""Test how the HTTP server stops."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.support.served import served


def test_connection_accepted_as_the_server_stops_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that stops closes a connection that it has just accepted, and does not wait for its client."""
    with served(tmp_path) as node:
        init = node.protocol.__init__

        def init_and_stop(*arguments: Any, **more: Any) -> None:
            init(*arguments, **more)
            monkeypatch.undo()
            stopping.append(asyncio.get_running_loop().create_task(node.server.shutdown()))

        stopping: list[asyncio.Task[None]] = []
        monkeypatch.setattr(node.protocol, "__init__", init_and_stop)
        with socket.create_connection(("127.0.0.1", node.port), timeout=10) as connection:
            assert connection.recv(1) == b""
