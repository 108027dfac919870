"""Serve the operator's own HTTP port: `/metrics` for Prometheus, `/healthz` for the kubelet.

Threads answer, so that a blocked event loop fails the health check and does not hang it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from queryable_app.platform.listeners import EVERY_ADDRESS, listen
from queryable_operator.act.watch_cache import ResourceKey
from queryable_operator.decide.actions import Event

_STALE_SECONDS: Final = 300.0
_LOOP_SECONDS: Final = 60.0
_REQUEST_SECONDS: Final = 5.0
_OUTCOMES: Final = {"CutOver": "succeeded", "RolloutFailed": "failed"}


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        labels = ("namespace", "name")
        own: dict[str, Any] = {"registry": self.registry}
        self._reconciled = Counter("qt_reconcile", "Reconcile passes by result", ("result",), **own)
        self._seconds = Histogram("qt_reconcile_duration_seconds", "Duration of a reconcile pass", **own)
        self._phase = Gauge("qt_phase", "1 for the phase of a resource", (*labels, "phase"), **own)
        self._lag = Gauge("qt_active_lag", "Lag of the active revision in records", labels, **own)
        self._progress = Gauge(
            "qt_candidate_progress_ratio",
            "Share of the candidate's partitions that are hydrated",
            labels,
            **own,
        )
        self._rollouts = Counter("qt_rollouts", "Rollouts by outcome", ("outcome",), **own)
        self._last = Gauge(
            "qt_last_reconcile_timestamp_seconds", "Time of the last pass without an error", labels, **own
        )
        self._phases: dict[ResourceKey, str] = {}

    def observe_pass(self, key: ResourceKey, result: str, seconds: float) -> None:
        self._reconciled.labels(result).inc()
        self._seconds.observe(seconds)
        if result == "ok":
            self._last.labels(*key).set_to_current_time()

    def observe_decision(self, key: ResourceKey, status: Mapping[str, Any], events: Iterable[Event]) -> None:
        phase = str(status.get("phase", ""))
        before = self._phases.get(key)
        if phase != before:
            if before:
                self._phase.remove(*key, before)
            if phase:
                self._phase.labels(*key, phase).set(1)
            self._phases[key] = phase
        lag = (status.get("active") or {}).get("lag")
        _set(self._lag, key, None if lag is None else float(lag))
        candidate = status.get("candidate") or {}
        total = candidate.get("totalPartitions")
        _set(self._progress, key, candidate.get("hydratedPartitions", 0) / total if total else None)
        for event in events:
            if event.reason in _OUTCOMES:
                self._rollouts.labels(_OUTCOMES[event.reason]).inc()

    def forget(self, key: ResourceKey) -> None:
        self.observe_decision(key, {}, ())
        self._phases.pop(key, None)
        _set(self._last, key, None)


def _set(gauge: Gauge, key: ResourceKey, value: float | None) -> None:
    if value is None:
        with suppress(KeyError):
            gauge.remove(*key)
    else:
        gauge.labels(*key).set(value)


@dataclass(slots=True)
class Health:
    """Track when the operator last made progress. The event loop writes, HTTP threads read."""

    clock: Callable[[], float] = time.monotonic
    _event_loop_at: float | None = None
    _finished_at: dict[ResourceKey, float] = field(default_factory=dict)
    _watch_problem: str | None = None

    def event_loop_turned(self) -> None:
        """Record that the event loop runs."""
        self._event_loop_at = self.clock()

    def finished(self, key: ResourceKey) -> None:
        self._finished_at[key] = self.clock()

    def forget(self, key: ResourceKey) -> None:
        self._finished_at.pop(key, None)

    def set_watch_problem(self, what: str | None) -> None:
        """Set what a watch has missed. None: every watch is up to date."""
        self._watch_problem = what

    def problem(self) -> str | None:
        now = self.clock()
        if self._event_loop_at is not None and now - self._event_loop_at > _LOOP_SECONDS:
            return f"the event loop has not run for {now - self._event_loop_at:.0f} s"
        for (namespace, name), at in list(self._finished_at.items()):
            if now - at > _STALE_SECONDS:
                return f"{namespace}/{name} was not reconciled for {now - at:.0f} s"
        return self._watch_problem


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def server_bind(self) -> None:
        """Listen over IPv4 and IPv6, where both exist."""
        self.socket.close()
        self.socket = listen(EVERY_ADDRESS, self.server_address[1])
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = self.socket.getsockname()[:2]


def serve(port: int, metrics: Metrics, health: Health) -> ThreadingHTTPServer:
    """Start a server whose threads answer until it is shut down."""

    class Answers(BaseHTTPRequestHandler):
        timeout = _REQUEST_SECONDS

        def do_GET(self) -> None:
            if self.path == "/metrics":
                self._answer(200, CONTENT_TYPE_LATEST, generate_latest(metrics.registry))
            elif self.path == "/healthz":
                problem = health.problem()
                text = f"{problem or 'ok'}\n".encode()
                self._answer(503 if problem else 200, "text/plain; charset=utf-8", text)
            else:
                self._answer(
                    404, "text/plain; charset=utf-8", b"not found: this port serves /metrics and /healthz\n"
                )

        def log_message(self, *_: Any) -> None:
            """Log no line for each probe."""

        def _answer(self, status: int, content_type: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = _Server(("", port), Answers)
    Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return server
