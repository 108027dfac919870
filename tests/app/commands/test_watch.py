"""Test `qtopic watch` beside a node that cannot answer."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys

import pytest

from queryable_app.errors import Failure, Reason
from tests.support.node_cluster import address_of, listen
from tests.support.socket_server import SocketServer


@pytest.mark.parametrize("reason", [Reason.NOT_AVAILABLE, Reason.DEADLINE_EXCEEDED, Reason.OVERLOADED])
def test_watch_waits_for_a_node_that_cannot_answer_now(reason: Reason) -> None:
    """It says why it waits, and goes on until Ctrl-C."""
    body = json.dumps(Failure(reason, "the node is busy", "retry").problem()).encode()
    answer = b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (reason.status, len(body), body)

    def refuse(connection: socket.socket) -> None:
        while connection.recv(65536):
            connection.sendall(answer)

    (listener,) = listen(1)
    url = address_of(listener)
    with SocketServer(listener, refuse):
        watching = subprocess.Popen(
            [sys.executable, "-m", "queryable_app.cli", "watch", "--url", url],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert watching.stderr is not None
        assert watching.stderr.readline() == "waiting: the node is busy\n"
        watching.send_signal(signal.SIGINT)
        _, errors = watching.communicate(timeout=20)
    assert "--from" in errors
