"""Proxy the operator's requests to the API server, count them, and refuse them on demand."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any
from urllib.parse import urlsplit

_HOP = {"connection", "keep-alive", "transfer-encoding", "host", "content-length"}


class CountingProxy:
    """Record the requests so far and the open connections."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._lock = Lock()
        self._requests: list[tuple[str, str]] = []
        self._open: set[socket.socket] = set()
        self.is_cut = False

    @property
    def kubeconfig(self) -> str:
        cluster = {"name": "it", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}
        context = {"name": "it", "context": {"cluster": "it", "user": "it"}}
        users = [{"name": "it", "user": {}}]
        head = {"apiVersion": "v1", "kind": "Config", "current-context": "it"}
        return json.dumps({**head, "clusters": [cluster], "users": users, "contexts": [context]})

    @property
    def requests(self) -> list[tuple[str, str]]:
        """Return the method and path of each request."""
        with self._lock:
            return list(self._requests)

    @property
    def writes(self) -> list[tuple[str, str]]:
        """Return the requests that change something. Self subject access reviews are posted, but change nothing."""
        return [r for r in self.requests if r[0] != "GET" and not r[1].endswith("selfsubjectaccessreviews")]

    def cut(self) -> None:
        """Close all connections, and refuse new ones until `is_cut` is reset."""
        self.is_cut = True
        with self._lock:
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def opened(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.add(connection)

    def closed(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.discard(connection)

    def note(self, method: str, path: str) -> None:
        with self._lock:
            self._requests.append((method, path))


@contextmanager
def counting_proxy(upstream: str) -> Iterator[CountingProxy]:
    """Start a proxy to `upstream`, an API server that needs no credentials, such as `kubectl proxy`."""
    address = urlsplit(upstream)

    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            proxy.opened(self.connection)
            self.upstream = http.client.HTTPConnection(address.hostname or "", address.port, timeout=900)

        def finish(self) -> None:
            self.upstream.close()
            proxy.closed(self.connection)
            super().finish()

        def _any(self) -> None:
            if proxy.is_cut:
                self.close_connection = True
                return
            proxy.note(self.command, urlsplit(self.path).path)
            length = int(self.headers.get("Content-Length") or 0)
            headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP}
            self.upstream.request(self.command, self.path, self.rfile.read(length) or None, headers)
            answer = self.upstream.getresponse()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in _HOP:
                    self.send_header(name, value)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            while piece := answer.read1(1 << 16):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")
            answer.read()  # so that http.client sees the end of the response

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _any

        def log_message(self, *_: Any) -> None:
            """Log nothing: there are too many requests."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, *_: Any) -> None:
            """Ignore a side that has closed its connection."""

    server = Server(("127.0.0.1", 0), Answers)
    proxy = CountingProxy(server.server_port)
    Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
