"""Serve schemas by the protocol of Confluent's registry, as its documentation has the exchanges; and answer wrongly on demand."""

from __future__ import annotations

import base64
import json
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"

V1 = {
    "type": "record",
    "name": "U",
    "fields": [{"name": "id", "type": "int"}, {"name": "old", "type": "string"}],
}
V2 = {
    "type": "record",
    "name": "U",
    "fields": [{"name": "id", "type": "long"}, {"name": "city", "type": "string", "default": "none"}],
}
"""A record as two versions of its schema describe it."""
Reference = tuple[str, str, int]
"""The name of a type, the subject that has it, and the version."""


WRONG = {
    "html": (200, "text/html", b"<html>Sign in</html>"),
    "html 404": (404, "text/html", b"<html>Not here</html>"),
    "error": (500, CONTENT_TYPE, b'{"error_code":50001,"message":"Error in the backend data store"}'),
    "error without JSON": (503, "text/plain", b"no healthy upstream"),
    "busy": (429, CONTENT_TYPE, b'{"error_code":42901,"message":"Too many requests"}'),
    "redirect": (302, "text/html", b""),
    "other JSON": (200, CONTENT_TYPE, b'["a"]'),
    "number": (200, CONTENT_TYPE, b'{"schema":5}'),
    "empty": (200, CONTENT_TYPE, b""),
    "other 404": (404, CONTENT_TYPE, b'{"error_code":404,"message":"HTTP 404 Not Found"}'),
    "deep": (200, CONTENT_TYPE, b"[" * 100_000),
    "not UTF-8": (200, CONTENT_TYPE, b'{"schema":"\xff\xff"}'),
}
"""Answers that are not those of a registry, or of one that fails: status, content type and body."""


class Registry:
    def __init__(self, url: str) -> None:
        self.url = url
        self.schemas: dict[int, dict[str, Any]] = {}
        self.versions: dict[tuple[str, int], int] = {}
        self.requests: list[str] = []
        self.broken = ""
        """How it answers at present: `` as it should; `away`: it closes the connection; `hangs`, `drips` a byte at a time, or
        `cut` off; `endless`; `plain`: as it should, as text/plain; or the name of a wrong answer in `WRONG`."""
        self.released = threading.Event()
        self.user_info = ""

    def register(
        self, subject: str, schema: Any, references: Sequence[Reference] = (), type_: str = "AVRO"
    ) -> int:
        """Return the id of a new schema, which is the next version of the subject."""
        id_ = len(self.schemas) + 1
        version = sum(of == subject for of, _ in self.versions) + 1
        text = schema if isinstance(schema, str) else json.dumps(schema)
        self.schemas[id_] = {"schema": text}
        if type_ != "AVRO":  # the documented answer names every other type
            self.schemas[id_]["schemaType"] = type_
        if references:
            self.schemas[id_]["references"] = [
                {"name": name, "subject": of, "version": number} for name, of, number in references
            ]
        self.versions[subject, version] = id_
        return id_

    def answer(self, path: str, authorization: str | None) -> tuple[int, dict[str, Any]]:
        expected = "Basic " + base64.b64encode(self.user_info.encode()).decode()
        if self.user_info and authorization != expected:
            return 401, {"error_code": 401, "message": "Unauthorized"}
        parts = [unquote(part) for part in path.split("?")[0].split("/")[1:]]
        if parts[:2] == ["schemas", "ids"] and len(parts) == 3:
            found = self.schemas.get(int(parts[2]))
            return (200, found) if found else (404, {"error_code": 40403, "message": "Schema not found"})
        if parts[:1] == ["subjects"] and parts[2:3] == ["versions"] and len(parts) == 4:
            subject, version = parts[1], int(parts[3])
            if subject not in {of for of, _ in self.versions}:
                return 404, {"error_code": 40401, "message": "Subject not found."}
            if (subject, version) not in self.versions:
                return 404, {"error_code": 40402, "message": "Version not found."}
            id_ = self.versions[subject, version]
            return 200, {"subject": subject, "version": version, "id": id_, **self.schemas[id_]}
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}


def framed(schema_id: int, avro: bytes) -> bytes:
    """Return a record as the serializers of a registry write it."""
    return b"\0" + struct.pack(">I", schema_id) + avro


@contextmanager
def schema_registry() -> Iterator[Registry]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            registry.requests.append(self.path)
            if registry.broken == "away":
                self.close_connection = True
                return
            status, body = registry.answer(self.path, self.headers["Authorization"])
            content_type, data = CONTENT_TYPE, json.dumps(body).encode()
            if registry.broken in WRONG:
                status, content_type, data = WRONG[registry.broken]
            elif registry.broken == "endless":
                data = b'{"schema":"' + b" " * (2 << 20)
            elif registry.broken == "plain":
                content_type = "text/plain"
            elif registry.broken == "hangs":
                registry.released.wait(60)
                return
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Location", f"{registry.url}/elsewhere")  # for a redirect
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if registry.broken == "drips":
                for at in range(len(data)):
                    self.wfile.write(data[at : at + 1])
                    self.wfile.flush()
                    if registry.released.wait(0.05):
                        break
                return
            if registry.broken == "cut":
                data = data[: len(data) // 2]
                self.close_connection = True
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    registry = Registry(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield registry
    finally:
        registry.released.set()
        server.shutdown()
        server.server_close()
        thread.join()
