"""The embedded Kafka as tests use it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from queryable_app.config.kafka_settings import kafka_connection
from queryable_app.local import topics
from queryable_app.local.embedded_kafka import EmbeddedKafka
from queryable_app.platform import jars


class KafkaForTests(EmbeddedKafka):
    more_settings: Mapping[str, str] = {}
    """Over those that it has; to be set before it is started."""

    @property
    def controller_port(self) -> int:
        return self._address.controller_port

    def create_topic(self, name: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
        topics.create_topic(kafka_connection(self.bootstrap, {}), name, partitions, config)

    def partitions_of(self, name: str) -> int:
        return topics.partitions_of(kafka_connection(self.bootstrap, {}), name)

    def _write_settings(self) -> Path:
        """The last line of a setting counts."""
        file = super()._write_settings()
        with file.open("a") as out:
            out.writelines(f"{name}={value}\n" for name, value in self.more_settings.items())
        return file


@contextmanager
def embedded_kafka(
    directory: Path, more_settings: Callable[[KafkaForTests], Mapping[str, str]] | None = None
) -> Iterator[KafkaForTests]:
    """A started broker over `directory`, stopped at the end."""
    broker = KafkaForTests(
        directory, jars.broker_jars(jars.cache_dir(os.environ.get("QT_CACHE_DIR", ""))), jars.find_java()
    )
    if more_settings is not None:
        broker.more_settings = more_settings(broker)
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()
