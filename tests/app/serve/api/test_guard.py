"""Test the guard around every route, where a real client cannot be timed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from starlette.types import Message

from tests.support.served import served


def test_connection_closed_during_a_write_is_no_defect(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A node ignores that the event loop has closed a connection before uvicorn notices it."""
    scope: dict[str, Any] = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "root_path": "",
    }
    scope |= {"path": "/v1/status", "raw_path": b"/v1/status", "query_string": b"", "headers": []}

    async def receive() -> Message:
        return {"type": "http.request", "body": b""}

    async def send(message: Message) -> None:
        raise RuntimeError("unable to perform operation on <TCPTransport>; the handler is closed")

    with served(tmp_path) as node:
        node.begin(node.app(scope, receive, send)).result(10)
        assert node.node.counters.in_flight == 0

    assert "internal-error" not in capfd.readouterr().err
