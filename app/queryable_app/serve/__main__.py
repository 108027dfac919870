"""`python -m queryable_app.serve`: one node's serving process, configured by the variables of contract.NodeSettings."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
import uvloop

from queryable_app.contract import NodeSettings, SettingsError
from queryable_app.kafka_settings import KafkaSettingsError
from queryable_app.log import event
from queryable_app.serve.api.app import create_app
from queryable_app.serve.fast_lane import protocol_class
from queryable_app.serve.node import Node
from queryable_app.topic_spec import SpecError

DRAIN_SECONDS = 10


class _Server(uvicorn.Server):
    """Uvicorn's own, but for signals: it would raise them again before the stores are closed."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        yield


async def _serve(node: Node, listener: socket.socket) -> None:
    config = uvicorn.Config(
        create_app(node),
        http=protocol_class(node),
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        ws="none",
        limit_concurrency=None,
        timeout_keep_alive=node.settings.idle_seconds_max,
        timeout_graceful_shutdown=DRAIN_SECONDS,
    )
    await node.start()
    event("serving", url=node.settings.advertised_url, partitions=sorted(node.copies.by_partition))
    try:
        await _Server(config).serve([listener])
    finally:
        await node.stop()


def main() -> int:
    logging.getLogger("uvicorn.error").setLevel(
        logging.ERROR
    )  # a warning for each bad request is anybody's to cause
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # log_end says once when Kafka goes and comes
    try:
        settings = NodeSettings.from_env()
        event("starting", node=settings.name, application=settings.application_id)
        family = socket.AF_INET6 if ":" in settings.http_host else socket.AF_INET
        listener = socket.create_server((settings.http_host, settings.http_port), family=family, backlog=2048)
        node = Node.open(settings)
        uvloop.run(_serve(node, listener))
    except (SettingsError, SpecError, KafkaSettingsError, OSError) as error:
        event("failed", reason=str(error))
        return 1
    event("stopped", node=settings.name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
