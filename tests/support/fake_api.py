"""Simulate a Kubernetes API server: objects with versions, watches, and injected failures. There are no controllers, no schema
and no defaults behind it; tests/cluster uses a real one."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Condition, Thread
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from kubernetes.client.configuration import Configuration

from queryable_operator.act.cluster import KINDS, Kind
from queryable_operator.spec import names

_BY_PLURAL = {kind.plural: (name, kind) for name, kind in KINDS.items()}

Answer = tuple[int, Mapping[str, Any]]
Object = dict[str, Any]


@dataclass(frozen=True)
class Request:
    method: str
    plural: str
    namespace: str
    name: str
    subresource: str
    query: Mapping[str, str]
    body: Any

    @property
    def writes(self) -> bool:
        return self.method != "GET" and self.plural != "selfsubjectaccessreviews"


class Refuse(Exception):
    def __init__(self, status: int, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers


@dataclass
class FakeApi:
    port: int = 0
    objects: dict[tuple[str, str, str], Object] = field(default_factory=dict)  # by plural, namespace, name
    requests: list[Request] = field(default_factory=list)
    order: Callable[[Request], None] = lambda _: None
    """May raise Refuse, or block."""

    denied: set[tuple[str, str]] = field(default_factory=set)  # verb and plural
    crd: bool = True
    _version: int = 0
    _history: list[tuple[int, str, str, Object]] = field(default_factory=list)
    _changed: Condition = field(default_factory=Condition)
    _open: bool = True

    @property
    def host(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def configuration(self) -> Configuration:
        return Configuration(host=self.host, retries=0)

    def kubeconfig(self) -> str:
        return json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "fake",
                "clusters": [{"name": "fake", "cluster": {"server": self.host}}],
                "users": [{"name": "fake", "user": {}}],
                "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake"}}],
            }
        )

    def put(self, live: Mapping[str, Any]) -> Object:
        """Store an object as another client would, without a counted request."""
        with self._changed:
            return self._store(_plural(live), json.loads(json.dumps(live)))

    def get(self, kind: str, namespace: str, name: str) -> Object | None:
        return self.objects.get((KINDS[kind].plural, namespace, name))

    def delete(self, kind: str, namespace: str, name: str) -> None:
        with self._changed:
            self._remove(KINDS[kind].plural, namespace, name)

    def all(self, kind: str) -> list[Object]:
        return [live for (plural, _, _), live in self.objects.items() if plural == KINDS[kind].plural]

    def writes(self) -> list[Request]:
        return [request for request in self.requests if request.writes]

    def close(self) -> None:
        with self._changed:
            self._open = False
            self._changed.notify_all()

    # The methods below run in request threads.

    def answer(self, request: Request) -> Answer:
        self.order(request)
        if request.plural == "selfsubjectaccessreviews":
            attributes = request.body["spec"]["resourceAttributes"]
            return 201, {
                "status": {"allowed": (attributes["verb"], attributes["resource"]) not in self.denied}
            }
        with self._changed:
            return self._answer(request)

    def watch(self, request: Request) -> Iterator[bytes]:
        seen, plural = int(request.query.get("resourceVersion", 0)), request.plural
        while self._open:
            with self._changed:
                news = [h for h in self._history if h[0] > seen and h[1] == plural]
                if not news:
                    self._changed.wait(0.5)
                    continue
                seen = news[-1][0]
            for _, _, kind, live in news:
                if _selected(live, request.query):
                    yield json.dumps({"type": kind, "object": live}).encode() + b"\n"

    def _answer(self, request: Request) -> Answer:
        where = (request.plural, request.namespace, request.name)
        if request.method == "GET" and not request.name:
            items = [
                live
                for (plural, namespace, _), live in self.objects.items()
                if plural == request.plural
                and request.namespace in ("", namespace)
                and _selected(live, request.query)
            ]
            kind = _BY_PLURAL[request.plural][0]
            return 200, {
                "kind": f"{kind}List",
                "metadata": {"resourceVersion": str(self._version)},
                "items": items,
            }
        live = self.objects.get(where)
        match request.method, request.subresource:
            case "POST", "eviction":
                if live is None:
                    raise Refuse(404, "no such pod")
                self._remove(*where)
                return 201, {}
            case "POST", _:
                return 201, self._create(request)
            case "PATCH", _ if request.query.get("force") and live is None:
                return 201, self._store(request.plural, dict(request.body))
        if live is None:
            raise Refuse(404, f'{request.plural} "{request.name}" not found')
        match request.method:
            case "GET":
                return 200, live
            case "PUT":
                _same_version(live, request.body)
                return 200, self._store(request.plural, dict(request.body))
            case "PATCH" if isinstance(request.body, list):
                wanted = {"metadata": {"resourceVersion": request.body[0]["value"]}}
                _same_version(live, wanted)
                return 200, self._store(request.plural, {**live, "status": request.body[1]["value"]})
            case "PATCH":
                _same_version(live, request.body)
                merged = _merged(live, request.body)
                stored = self._store(request.plural, merged)
                meta = stored["metadata"]
                if "deletionTimestamp" in meta and not meta.get("finalizers"):
                    self._remove(*where)
                return 200, stored
            case "DELETE":
                uid = (request.body or {}).get("preconditions", {}).get("uid", live["metadata"]["uid"])
                if uid != live["metadata"]["uid"]:
                    raise Refuse(409, "the uid is another one")
                self._remove(*where)
                return 200, live
        raise Refuse(405, "not here")

    def _create(self, request: Request) -> Object:
        made = json.loads(json.dumps(request.body))
        meta = made["metadata"]
        meta["namespace"] = request.namespace
        if "name" not in meta:
            meta["name"] = f"{meta['generateName']}{self._version}"
        if (request.plural, request.namespace, meta["name"]) in self.objects:
            raise Refuse(409, "already exists")
        return self._store(request.plural, made)

    def _store(self, plural: str, live: Object) -> Object:
        meta = live["metadata"] = dict(live["metadata"])
        where = (plural, meta.get("namespace", ""), meta["name"])
        before = self.objects.get(where)
        if before is not None and {**before, "metadata": {**before["metadata"], "resourceVersion": ""}} == {
            **live,
            "metadata": {**meta, "resourceVersion": ""},
        }:
            return before
        self._version += 1
        meta["resourceVersion"] = str(self._version)
        meta.setdefault("uid", f"uid-{self._version}")
        meta.setdefault("generation", 1)
        meta.setdefault("creationTimestamp", "2026-01-01T00:00:00Z")
        if before is not None and before.get("spec") != live.get("spec"):
            meta["generation"] = before["metadata"]["generation"] + 1
        self.objects[where] = live
        self._publish(plural, "ADDED" if before is None else "MODIFIED", live)
        return live

    def _remove(self, plural: str, namespace: str, name: str) -> None:
        live = self.objects[plural, namespace, name]
        if live["metadata"].get("finalizers"):
            if "deletionTimestamp" not in live["metadata"]:
                stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
                self._store(plural, {**live, "metadata": {**live["metadata"], "deletionTimestamp": stamp}})
            return
        del self.objects[plural, namespace, name]
        self._version += 1
        gone = {**live, "metadata": {**live["metadata"], "resourceVersion": str(self._version)}}
        self._publish(plural, "DELETED", gone)

    def _publish(self, plural: str, kind: str, live: Object) -> None:
        self._history.append((self._version, plural, kind, live))
        self._changed.notify_all()


@contextmanager
def fake_api() -> Iterator[FakeApi]:
    """Serve a fake API in threads until the end of the block."""
    api = FakeApi()
    server = _Server(("127.0.0.1", 0), _handler(api))
    api.port = server.server_port
    Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield api
    finally:
        api.close()
        server.shutdown()
        server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_: Any) -> None:
        """Ignore a client that closed its connection."""


def _handler(api: FakeApi) -> type[BaseHTTPRequestHandler]:
    """Return the handler of HTTP requests to a fake API."""

    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _any(self) -> None:
            url = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(url.query).items()}
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            headers: Mapping[str, str] = {}
            try:
                if (found := _discovery(url.path, api.crd)) is not None:
                    status, answer = found
                else:
                    request = _request(self.command, url.path, query, body)
                    api.requests.append(request)
                    if query.get("watch"):
                        return self._stream(_watched(api, request))
                    status, answer = api.answer(request)
            except Refuse as refused:
                status, headers = refused.status, refused.headers
                answer = {"kind": "Status", "message": str(refused), "code": status}
            text = json.dumps(answer).encode()
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _any

        def _stream(self, lines: Iterator[bytes]) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for line in lines:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                self.wfile.flush()
            self.close_connection = True

        def log_message(self, *_: Any) -> None:
            pass

    return Answers


def _watched(api: FakeApi, request: Request) -> Iterator[bytes]:
    """Report a version that is too old within the stream, as a real API server does."""
    try:
        api.order(request)
    except Refuse as refused:
        if refused.status != 410:
            raise
        return iter([json.dumps({"type": "ERROR", "object": {"code": 410}}).encode() + b"\n"])
    return api.watch(request)


def _request(method: str, path: str, query: Mapping[str, str], body: Any) -> Request:
    parts = [unquote(part) for part in path.strip("/").split("/")]
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    namespace = ""
    if parts[0] == "namespaces" and len(parts) > 2:
        namespace, parts = parts[1], parts[2:]
    plural, name, subresource = (*parts, "", "")[:3]
    return Request(method, plural, namespace, name, subresource, query, body)


def _discovery(path: str, crd: bool) -> Answer | None:
    """Answer discovery requests. kopf also waits for namespaces and CRDs."""
    served = {**KINDS, "Namespace": Kind("", "v1", "namespaces")}
    served["CustomResourceDefinition"] = Kind("apiextensions.k8s.io", "v1", "customresourcedefinitions")
    if not crd:
        del served[names.KIND]
    groups = sorted({(kind.group, kind.version) for kind in served.values() if kind.group})
    if path == "/api":
        return 200, {"versions": ["v1"]}
    if path == "/apis":
        named = [(g, {"groupVersion": f"{g}/{v}", "version": v}) for g, v in groups]
        return 200, {"groups": [{"name": g, "versions": [v], "preferredVersion": v} for g, v in named]}
    for group, version in [("", "v1"), *groups]:
        if path == (f"/apis/{group}/{version}" if group else "/api/v1"):
            there = {n: k for n, k in served.items() if (k.group, k.version) == (group, version)}
            return 200, {"resources": [_described(name, kind) for name, kind in there.items()]}
    return (404, {"message": "no such group"}) if path.startswith("/apis/") and path.count("/") == 3 else None


def _described(name: str, kind: Kind) -> Object:
    verbs = ["get", "list", "watch", "create", "patch", "update", "delete"]
    namespaced = name not in ("Node", "Namespace", "CustomResourceDefinition")
    singular = name.lower()
    return {
        "name": kind.plural,
        "kind": name,
        "singularName": singular,
        "namespaced": namespaced,
        "verbs": verbs,
    }


def _plural(live: Mapping[str, Any]) -> str:
    return KINDS[live["kind"]].plural


def _selected(live: Mapping[str, Any], query: Mapping[str, str]) -> bool:
    label = query.get("labelSelector")
    return not label or label in live["metadata"].get("labels", {})


def _same_version(live: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    version = wanted.get("metadata", {}).get("resourceVersion")
    if version is not None and version != live["metadata"]["resourceVersion"]:
        raise Refuse(409, "the object has been modified; please apply your changes to the latest version")


def _merged(live: Any, wanted: Any) -> Any:
    if not isinstance(live, dict) or not isinstance(wanted, dict):
        return wanted
    merged = {**live, **{name: _merged(live.get(name), value) for name, value in wanted.items()}}
    return {name: value for name, value in merged.items() if value is not None}
