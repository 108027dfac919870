"""Run the server of an issuer's public keys, which answers well, badly or without end."""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar


class Issuer:
    """Answer with a document; a test changes it, or the way of the answer."""

    def __init__(self, keys: list[dict[str, Any]]) -> None:
        self.answer: tuple[int, dict[str, str], bytes] = (200, {}, json.dumps({"keys": keys}).encode())
        self.requests = 0
        self.pause_seconds: float | None = None
        """Between the pieces of an answer that does not end. None: the answer is `answer`."""
        self.endless_bytes = 0
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version: ClassVar[str] = "HTTP/1.1"  # type: ignore[misc]

            def do_GET(self) -> None:
                issuer.requests += 1
                if issuer.pause_seconds is not None:
                    self._answer_without_end(issuer.pause_seconds)
                    return
                if "application/jwk-set+json" not in self.headers.get("accept", ""):
                    self.send_error(406)  # as Kubernetes' API server
                    return
                status, headers, body = issuer.answer
                self.send_response(status)
                for name, value in {"content-length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def _answer_without_end(self, pause_seconds: float) -> None:
                self.send_response(200)
                self.send_header("connection", "close")
                self.end_headers()
                piece = b" " if pause_seconds else b" " * 4096
                with suppress(OSError):  # the client has gone
                    while not issuer.closed.wait(pause_seconds):
                        self.wfile.write(piece)
                        issuer.endless_bytes += len(piece)

            def log_message(self, *_: object) -> None:
                pass

        self.closed = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/keys"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def has(self, *keys: dict[str, Any]) -> None:
        self.answer = (200, {}, json.dumps({"keys": keys}).encode())

    def close(self) -> None:
        self.closed.set()
        self._server.shutdown()
        self._server.server_close()
