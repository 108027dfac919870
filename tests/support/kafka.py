"""Provide the embedded Kafka to tests."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from aiokafka.admin import AIOKafkaAdminClient

from queryable_app.config.kafka_settings import kafka_connection
from queryable_app.local import topics
from queryable_app.local.embedded_kafka import EmbeddedKafka
from queryable_app.platform import jars
from queryable_app.platform.processes import free_ports

T = TypeVar("T")


class KafkaForTests(EmbeddedKafka):
    more_settings: Mapping[str, str] = {"log.cleaner.backoff.ms": "500"}  # the default waits 15 s
    """Over those that it has; to be set before it is started."""

    @property
    def controller_port(self) -> int:
        return self._address.controller_port

    def create_topic(self, name: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
        asyncio.run(topics.create_topic(kafka_connection(self.bootstrap, {}), name, partitions, config))

    def partitions_of(self, name: str) -> int:
        return asyncio.run(topics.partitions_of(kafka_connection(self.bootstrap, {}), name))

    def _write_settings(self) -> Path:
        """Append the further settings, since the last line of a setting counts."""
        file = super()._write_settings()
        with file.open("a") as out:
            out.writelines(f"{name}={value}\n" for name, value in self.more_settings.items())
        return file


@contextmanager
def embedded_kafka(
    directory: Path,
    more_settings: Callable[[KafkaForTests], Mapping[str, str]] | None = None,
    kind: type[KafkaForTests] = KafkaForTests,
) -> Iterator[KafkaForTests]:
    """Start a broker over `directory`, and stop it at the end."""
    broker = kind(
        directory, jars.broker_jars(jars.cache_dir(os.environ.get("QT_CACHE_DIR", ""))), jars.find_java()
    )
    if more_settings is not None:
        broker.more_settings = more_settings(broker)
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()


@contextmanager
def kafka_with_listener(
    directory: Path,
    name: str,
    protocol: str,
    host: str = "127.0.0.1",
    settings: Mapping[str, str] | None = None,
) -> Iterator[tuple[KafkaForTests, int]]:
    """Start a broker with a further listener on a free port, advertised as `host`; yield the broker and that port."""
    (port,) = free_ports(1)

    def more_settings(broker: KafkaForTests) -> Mapping[str, str]:
        plain = f"PLAINTEXT://{broker.bootstrap}"
        return {
            "listeners": f"{plain},{name}://127.0.0.1:{port},CONTROLLER://127.0.0.1:{broker.controller_port}",
            "advertised.listeners": f"{plain},{name}://{host}:{port}",
            "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,{name}:{protocol}",
            **(settings or {}),
        }

    with embedded_kafka(directory, more_settings) as broker:
        yield broker, port


def with_admin(kafka: KafkaForTests, use: Callable[[AIOKafkaAdminClient], Coroutine[Any, Any, T]]) -> T:
    """Return what `use` returns of an admin client."""

    async def used() -> T:
        admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap)
        await admin.start()
        try:
            return await use(admin)
        finally:
            await admin.close()

    return asyncio.run(used())


@contextmanager
def silent_address() -> Iterator[str]:
    """Yield an address that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"
