"""Run code of the first query while Spark still starts, so that two cores share the work.

The warm-up uses only code that shares no class with Spark's start, since two threads that initialise the same classes can
deadlock. Its results are discarded. Its failures are ignored: they occur again, and are reported, in the query.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from py4j.protocol import Py4JError

from queryable_app.ingest.java_classes import java_class, java_list, java_map
from queryable_app.ingest.kafka_admin import WITHOUT_METRICS, KafkaAdmin, topic_partition
from queryable_app.platform.kafka_clients import KafkaUnavailable

_POLL_MS: Final = 1_000
_CLASS: Final = "public class WarmUp { public long add(long a, int b) { return a + b; } }"


def warm_up(jvm: Any, bootstrap_servers: str, config: Mapping[str, str], topic: str) -> None:
    """Start the warm-up in threads of its own."""
    _begin("warm-up-compiler", lambda: java_class(jvm, "org.codehaus.janino.SimpleCompiler")().cook(_CLASS))
    _begin("warm-up-kafka", lambda: _read(jvm, bootstrap_servers, config, topic))


def _begin(name: str, work: Callable[[], object]) -> None:
    def run() -> None:
        with suppress(Py4JError, KafkaUnavailable, OSError):
            work()

    threading.Thread(target=run, name=name, daemon=True).start()


def _read(jvm: Any, bootstrap_servers: str, config: Mapping[str, str], topic: str) -> None:
    """Describe the topic, and fetch one batch of records from it."""
    admin = KafkaAdmin(jvm, bootstrap_servers, config)
    seen = admin.describe(topic, [0])
    admin.close()
    if seen is None:
        return
    deserializer = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
    settings = {
        **WITHOUT_METRICS,
        **config,
        "bootstrap.servers": bootstrap_servers,
        "key.deserializer": deserializer,
        "value.deserializer": deserializer,
        "max.partition.fetch.bytes": "1",  # the broker sends a whole batch all the same
        "enable.auto.commit": "false",
    }
    consumer = java_class(jvm, "org.apache.kafka.clients.consumer.KafkaConsumer")(
        java_map(jvm, settings.items())
    )
    partitions = java_list(jvm, [topic_partition(jvm, topic, 0)])
    consumer.assign(partitions)
    consumer.seekToBeginning(partitions)
    consumer.poll(java_class(jvm, "java.time.Duration").ofMillis(_POLL_MS))
    consumer.close()
