"""Test ingest's end of the control socket, against a socket of the test."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from queryable_app.ingest.control import Control, ServeDisconnected, Superseded


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[tuple[Control, socket.socket]]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "control.sock"))
        listener.listen()
        control = Control(tmp_path / "control.sock")
        serve, _ = listener.accept()
        with serve:
            yield control, serve
        control.close()


def test_superseded_ingest_raises(ends: tuple[Control, socket.socket]) -> None:
    """A superseded ingest gets an exception, and does nothing after it."""
    control, serve = ends
    serve.sendall(b'{"type":"wanted","topic":"t","partitions":[]}\n{"type":"superseded"}\n')

    with pytest.raises(Superseded):
        control.receive(5)


def test_resumed_ingest_reads_that_it_is_superseded(ends: tuple[Control, socket.socket]) -> None:
    """A superseded ingest that was suspended finds the connection broken, and still reads the reason."""
    control, serve = ends
    serve.sendall(b'{"type":"superseded"}\n')
    serve.close()

    with pytest.raises(Superseded):
        control.send_state("restarting", "realtime", "", 1)


def test_lost_connection_does_not_end_ingest(ends: tuple[Control, socket.socket]) -> None:
    """Ingest continues after a lost connection; only a message from serve ends it."""
    control, serve = ends
    serve.close()

    with pytest.raises(ServeDisconnected):
        control.send_state("restarting", "realtime", "", 1)
