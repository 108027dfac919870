"""Run the serving process of one node: it listens on the node's own port, and a worker also on its pod's front port."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import uvicorn
import uvloop
from starlette.types import ASGIApp

from queryable_app.config.kafka_settings import KafkaSettingsError
from queryable_app.config.topic_spec import SpecError
from queryable_app.contract import NodeSettings, SettingsError
from queryable_app.platform.certificates import CertificateError
from queryable_app.platform.descriptors import raise_descriptor_limit
from queryable_app.platform.listeners import listen
from queryable_app.platform.log import event
from queryable_app.serve.base.allocator import return_large_blocks
from queryable_app.serve.base.background import note_unhandled
from queryable_app.serve.base.data_directory_lock import locked_directory
from queryable_app.serve.http.late_app import Factory, LateApp
from queryable_app.serve.http.protocol import protocol_class
from queryable_app.serve.http.tls_listener import TlsServer
from queryable_app.serve.node import Node, log_descriptor_plan

_SHUTDOWN_GRACE_SECONDS: Final = 10
"""Time for the requests that are in flight when the server stops."""

_BACKLOG: Final = 2048
_END_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class _Server(TlsServer):
    """Drain the node after the first end signal, and stop the server after the second or when the drain is over."""

    def __init__(self, config: uvicorn.Config, node: Node) -> None:
        super().__init__(config, node.tls, node.counters, node.settings.head_seconds_max)
        self._node = node

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to `handle_end_signals`, which handles them before the server runs too."""
        yield

    def end_if_failed(self, done: asyncio.Future[None]) -> None:
        """End the server if what the task makes is missing."""
        if not done.cancelled() and done.exception() is not None:
            self.should_exit = True

    def handle_end_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in _END_SIGNALS:
            loop.add_signal_handler(number, self._on_end_signal)

    def _on_end_signal(self) -> None:
        seconds = self._node.settings.drain_seconds
        if not seconds or self._node.draining or not self.started:
            self.should_exit = True
            return
        self._node.drain()
        event("draining", seconds=seconds)
        asyncio.get_running_loop().call_later(seconds, self._on_end_signal)


def server_config(node: Node, app: ASGIApp) -> uvicorn.Config:
    """Return how uvicorn serves a node."""
    return uvicorn.Config(
        app,
        http=protocol_class(node),
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        ws="none",
        limit_concurrency=None,
        timeout_keep_alive=node.settings.idle_seconds_max,
        timeout_graceful_shutdown=_SHUTDOWN_GRACE_SECONDS,
    )


def _load_app(node: Node) -> Factory:
    from queryable_app.serve.api.app import create_app

    return partial(create_app, node)


async def _serve(node: Node, own: socket.socket) -> None:
    app = LateApp(partial(_load_app, node))
    server = _Server(server_config(node, app), node)
    server.handle_end_signals()
    asyncio.get_running_loop().set_exception_handler(note_unhandled)
    await node.start()
    making = asyncio.create_task(app.make())
    making.add_done_callback(server.end_if_failed)
    try:
        # A worker takes its part of the pod's clients only now, so that they do not wait for it while it starts.
        await _serve_at(server, node, [own, *_front_listeners(node.settings)])
        await making  # raises why the node has no application
    finally:
        await node.stop()


async def _serve_at(server: _Server, node: Node, listeners: list[socket.socket]) -> None:
    gc.collect()  # before `LateApp.make` keeps the collector from what is left
    event(
        "serving",
        url=node.settings.advertised_url,
        partitions=sorted(node.replicas.by_partition),
        descriptors=node.descriptors.limit,
        connections=node.descriptors.connections,
    )
    log_descriptor_plan(node.settings, node.descriptors)
    await server.serve(listeners)


def _front_listeners(settings: NodeSettings) -> list[socket.socket]:
    if not settings.front_port:
        return []
    return [listen(settings.http_host, settings.front_port, _BACKLOG, shared=True)]


def run_node(settings: NodeSettings) -> int:
    """Serve until a signal ends the process. Return the exit code."""
    raise_descriptor_limit()
    return_large_blocks()
    # Any client can cause uvicorn's warnings; `EndOffsets` logs when Kafka becomes unavailable.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # likewise, by closing half of a TLS connection
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    for number in _END_SIGNALS:  # the first process of a container has no default handlers
        signal.signal(number, lambda *_: sys.exit(0))
    try:
        event("starting", node=settings.name, application=settings.application_id)
        own = listen(settings.http_host, settings.http_port, _BACKLOG)
        with locked_directory(Path(settings.data_dir)):
            node = Node.open(settings)
            uvloop.run(_serve(node, own))
    except (SpecError, KafkaSettingsError, SettingsError, CertificateError, OSError) as error:
        event("failed", reason=str(error))
        return 1
    event("stopped", node=settings.name)
    return 0
