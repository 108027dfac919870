"""Stand in for serve's row socket in checks and rehearsals: read what the writer sends, and acknowledge it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from queryable_app.wire import row_frames


class Sink:
    """Listen until closed, and call `on_payload` with every frame's payload, from other threads."""

    def __init__(self, path: Path, on_payload: Callable[[bytes], None]) -> None:
        path.unlink(missing_ok=True)
        self._path = path
        self._on_payload = on_payload
        self._listener = socket.socket(socket.AF_UNIX)
        try:
            self._listener.bind(str(path))
            self._listener.listen(16)
        except OSError:
            self._listener.close()
            raise
        threading.Thread(target=self._accept, name="sink", daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(
                socket.SHUT_RDWR
            )  # wakes the accepting thread, which closing alone does not
        self._listener.close()
        self._path.unlink(missing_ok=True)

    def __enter__(self) -> Sink:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._take, args=(connection,), name="sink", daemon=True).start()

    def _take(self, connection: socket.socket) -> None:
        with suppress(OSError), connection, connection.makefile("rb") as stream:
            while prefix := stream.read(row_frames.LENGTH.size):
                payload = stream.read(row_frames.payload_length(prefix))
                self._on_payload(payload)
                if payload[0] == row_frames.END:
                    connection.sendall(row_frames.ACK)
