"""Create, fill and read back topics for tests, with a client that is not the product's."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.cimpl import NewPartitions, NewTopic

from tests.support.fold import LogRecord
from tests.support.waiting import eventually


def admin(bootstrap: str) -> Any:
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})


def create(bootstrap: str, topic: str, partitions: int = 4, **config: str) -> None:
    """Create the topic, and wait until every partition has a leader."""
    client = admin(bootstrap)
    made: Any = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=dict(config))
    client.create_topics([made])[topic].result(20)

    def has_leaders() -> bool:
        known = client.list_topics(timeout=5).topics.get(topic)
        return (
            known is not None
            and len(known.partitions) == partitions
            and all(p.leader >= 0 for p in known.partitions.values())
        )

    eventually(f"{topic} has leaders", has_leaders, 20)


def configure(bootstrap: str, topic: str, config: Mapping[str, str]) -> None:
    """Change settings of the topic."""
    client = admin(bootstrap)
    entries: Any = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in config.items()
    ]
    wanted: Any = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
    client.incremental_alter_configs([wanted])[wanted].result(20)


def truncate(bootstrap: str, topic: str, until: Mapping[int, int]) -> None:
    """Delete the records of each partition before an offset."""
    client = admin(bootstrap)
    places = [TopicPartition(topic, partition, offset) for partition, offset in until.items()]
    for deleted in client.delete_records(places).values():
        deleted.result(20)


def grow(bootstrap: str, topic: str, partitions: int) -> None:
    client = admin(bootstrap)
    wanted: Any = NewPartitions(topic, partitions)
    client.create_partitions([wanted])[topic].result(20)
    eventually(
        f"{topic} has {partitions} partitions",
        lambda: len(client.list_topics(timeout=5).topics[topic].partitions) >= partitions,
        20,
    )


def delete(bootstrap: str, topic: str) -> None:
    client = admin(bootstrap)
    client.delete_topics([topic])[topic].result(20)
    eventually(f"{topic} is deleted", lambda: topic not in client.list_topics(timeout=5).topics, 20)


def flood(
    bootstrap: str,
    topic: str,
    stop: threading.Event,
    records: Iterable[tuple[bytes, bytes | None]],
    batch: int = 10,
) -> None:
    """Write records until `stop`, a batch every 20 ms."""
    client, endless = producer(bootstrap), iter(records)
    while not stop.is_set():
        for key, value in islice(endless, batch):
            client.produce(topic, key=key, value=value)
        client.poll(0)
        stop.wait(0.02)
    assert client.flush(90) == 0


def producer(bootstrap: str, **config: Any) -> Any:
    """Return a producer with Java's partitioner; `partitioner="consistent_random"` is librdkafka's own."""
    settings = {
        "bootstrap.servers": bootstrap,
        "partitioner": "murmur2_random",
        "acks": "all",
        "linger.ms": 1,
    }
    return Producer({**settings, "message.max.bytes": 8_000_000, "log_level": 0, **config})


def produce(
    bootstrap: str, topic: str, records: Iterable[tuple[bytes | None, bytes | None]], **config: Any
) -> None:
    """Produce the records, and return when all of them are acknowledged."""
    client = producer(bootstrap, **config)
    for key, value in records:
        while True:
            try:
                client.produce(topic, key=key, value=value)
                break
            except BufferError:
                client.poll(0.05)
    assert client.flush(60) == 0


def churn(bootstrap: str, topic: str, stop: threading.Event, seed: int) -> None:
    """Write updates and deletes over few keys until `stop`, so that nearly every record replaces another."""
    dice = random.Random(seed)
    client = producer(bootstrap)
    number = 0
    while not stop.is_set():
        for _ in range(20):
            number += 1
            key = f"key-{dice.randrange(400)}".encode()
            value = (
                None
                if dice.random() < 0.2
                else json.dumps({"number": number, "pad": "x" * dice.randrange(200)})
            )
            client.produce(topic, key=key, value=value and value.encode())
        client.poll(0)
        stop.wait(0.02)
    assert client.flush(60) == 0


def ends(bootstrap: str, topic: str, isolation: str = "read_committed") -> dict[int, int]:
    """Return the end offset of each partition, as a reader of that isolation level sees it."""
    client = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "ends",
            "isolation.level": isolation,
            "log_level": 0,
        }
    )
    try:
        partitions = client.list_topics(topic, timeout=10).topics[topic].partitions
        return {p: client.get_watermark_offsets(TopicPartition(topic, p), timeout=10)[1] for p in partitions}
    finally:
        client.close()


def wait_for_markers(bootstrap: str, topic: str) -> None:
    """Wait until every ended transaction has its markers in the log: they follow Kafka's answer to the commit or abort."""
    eventually(
        f"{topic} has the markers of its transactions",
        lambda: ends(bootstrap, topic) == ends(bootstrap, topic, "read_uncommitted"),
        20,
    )


def records(bootstrap: str, topic: str) -> list[LogRecord]:
    """Yield every committed record of the topic, partition by partition in offset order."""
    client = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "records",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    partitions = client.list_topics(topic, timeout=10).topics[topic].partitions
    client.assign([TopicPartition(topic, p, 0) for p in partitions])
    open_partitions, found = set(partitions), []
    try:
        while open_partitions:
            message: Any = client.poll(20)
            assert message is not None, "the broker is silent"
            error = message.error()
            if error is not None:
                if error.code() != -191:  # the end of a partition
                    raise KafkaException(error)
                open_partitions.discard(message.partition())
                continue
            found.append(
                LogRecord(
                    message.partition(),
                    message.offset(),
                    message.timestamp()[1],
                    message.key(),
                    message.value(),
                )
            )
    finally:
        client.close()
    return sorted(found, key=lambda r: (r.partition, r.offset))


def json_records(values: Mapping[str, Any]) -> list[tuple[bytes, bytes]]:
    return [(k.encode(), json.dumps(v).encode()) for k, v in values.items()]
