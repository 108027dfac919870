"""Look up and create topics, and write records, for a run on one machine."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, TopicAlreadyExistsError, for_code

from queryable_app.config.kafka_settings import KafkaConnection
from queryable_app.platform.kafka_clients import client_arguments
from queryable_app.wire import partitioners

Send = Callable[[bytes, bytes | None], Awaitable[tuple[int, int]]]

_RECORD_BYTES_MAX: Final = 16 * 1024 * 1024
_LEADERS_SECONDS: Final = 30
_POLL_SECONDS: Final = 0.1


class KafkaUnreachable(Exception):
    """No broker answers at the address, which the message names."""


class TopicRefused(Exception):
    """The broker refuses the topic or the record; the message says why."""


@dataclass(frozen=True, slots=True)
class TopicSize:
    partitions: int
    records: int
    """The distance of the offsets, which compaction and transactions make larger than the number of records."""


@asynccontextmanager
async def producing(kafka: KafkaConnection, topic: str, partitioner: str) -> AsyncIterator[Send]:
    """Yield a function that writes one record, and returns its partition and offset once the broker has it."""
    algorithm = partitioner if partitioner in partitioners.ALGORITHMS else partitioners.ALGORITHMS[0]

    def partition_for(key: bytes, partitions: list[int], _: list[int]) -> int:
        return partitions[partitioners.partition_for(key, algorithm, len(partitions))]

    producer = AIOKafkaProducer(
        **client_arguments(kafka), acks="all", max_request_size=_RECORD_BYTES_MAX, partitioner=partition_for
    )

    async def send(key: bytes, value: bytes | None) -> tuple[int, int]:
        try:
            written = await producer.send_and_wait(topic, key=key, value=value)
        except KafkaError as e:
            raise TopicRefused(f"a record of topic {topic!r} was refused: {e}") from e
        return written.partition, written.offset

    async with _connected(producer, kafka):
        if not await producer.client.force_metadata_update() or topic not in producer.client.cluster.topics():
            raise TopicRefused(f"there is no topic {topic!r}")
        yield send


async def partitions_of(kafka: KafkaConnection, topic: str) -> int:
    """Return how many partitions the topic has; 0 if it does not exist or one of them has no leader."""
    admin = AIOKafkaAdminClient(**client_arguments(kafka))
    async with _connected(admin, kafka):
        return await _ready_partitions(admin, topic)


async def size_of(kafka: KafkaConnection, topic: str) -> TopicSize | None:
    """Return the size of the topic; None if it does not exist or one of its partitions has no leader."""
    partitions = await partitions_of(kafka, topic)
    if not partitions:
        return None
    consumer = AIOKafkaConsumer(**client_arguments(kafka))
    async with _connected(consumer, kafka):
        parts = [TopicPartition(topic, number) for number in range(partitions)]
        first, last = await consumer.beginning_offsets(parts), await consumer.end_offsets(parts)
        return TopicSize(partitions, sum(last[part] - first[part] for part in parts))


async def create_topic(
    kafka: KafkaConnection, topic: str, partitions: int, config: Mapping[str, str] | None = None
) -> None:
    """Create the topic, and return when every partition has a leader. An existing topic stays unchanged."""
    admin = AIOKafkaAdminClient(**client_arguments(kafka))
    async with _connected(admin, kafka):
        answer = await admin.create_topics([NewTopic(topic, partitions, 1, topic_configs=dict(config or {}))])
        for _, code, *message in answer.topic_errors:
            error = for_code(code)
            if code and error is not TopicAlreadyExistsError:
                why = (message or [None])[0] or error.__name__
                raise TopicRefused(f"the topic {topic!r} cannot be created: {why}")
        deadline = time.monotonic() + _LEADERS_SECONDS
        while not await _ready_partitions(admin, topic):
            if time.monotonic() > deadline:
                raise TopicRefused(f"the topic {topic!r} was created, but its partitions got no leader")
            await asyncio.sleep(_POLL_SECONDS)


async def delete_topic(kafka: KafkaConnection, topic: str) -> None:
    """Delete the topic, if it exists, and return when it is gone."""
    admin = AIOKafkaAdminClient(**client_arguments(kafka))
    async with _connected(admin, kafka):
        deadline = time.monotonic() + _LEADERS_SECONDS
        while any(found["topic"] == topic for found in await admin.describe_topics()):
            await admin.delete_topics([topic])
            if time.monotonic() > deadline:
                raise TopicRefused(f"the topic {topic!r} cannot be deleted")
            await asyncio.sleep(_POLL_SECONDS)


async def _ready_partitions(admin: Any, topic: str) -> int:
    # Lists all topics: a broker that creates topics automatically creates one that is looked up by name.
    found = [t for t in await admin.describe_topics() if t["topic"] == topic and not t["error_code"]]
    partitions = found[0]["partitions"] if found else []
    return len(partitions) if all(p["leader"] >= 0 and not p["error_code"] for p in partitions) else 0


@asynccontextmanager
async def _connected(client: Any, kafka: KafkaConnection) -> AsyncIterator[None]:
    """Start an aiokafka client, and stop it at the end. Raises KafkaUnreachable."""
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # the exception says the same
    stop = client.close if isinstance(client, AIOKafkaAdminClient) else client.stop
    try:
        try:
            await client.start()
        except (KafkaError, OSError) as e:
            servers = ",".join(kafka.arguments["bootstrap_servers"])
            raise KafkaUnreachable(f"Kafka cannot be reached at {servers}") from e
        yield
    finally:
        await stop()
