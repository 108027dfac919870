"""Run a node against a real Kafka, and write and read the topic beside it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

from queryable_app.serve.node import Node
from tests.support.kafka import KafkaForTests
from tests.support.node import open_node


@asynccontextmanager
async def node_on(tmp_path: Path, bootstrap: str, topic: str, **spec: Any) -> AsyncIterator[Node]:
    settings = {"log_end_interval_ms": 50}
    node = open_node(tmp_path, topic=topic, bootstrap=bootstrap, settings=settings, **spec)
    await node.start()
    try:
        yield node
    finally:
        await node.stop()


@asynccontextmanager
async def producer(bootstrap: str, **options: Any) -> AsyncIterator[AIOKafkaProducer]:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, **options) as started:
        yield started


async def produce(bootstrap: str, topic: str, *values: bytes) -> None:
    async with producer(bootstrap) as sender:
        for value in values:
            await sender.send_and_wait(topic, value, key=b"k", partition=0)


async def produce_in_transaction(bootstrap: str, topic: str, commit: bool) -> None:
    """Produce in a transaction, and return once its marker is in the log, which is later than Kafka's answer."""
    async with producer(bootstrap, transactional_id=uuid.uuid4().hex) as sender:
        await sender.begin_transaction()
        sent = await sender.send_and_wait(topic, b"v", key=b"k", partition=0)
        if commit:
            await sender.commit_transaction()
        else:
            await sender.abort_transaction()
    where = TopicPartition(topic, 0)
    async with asyncio.timeout(20), AIOKafkaConsumer(bootstrap_servers=bootstrap) as reader:
        while (await reader.end_offsets([where]))[where] < sent.offset + 2:
            pass  # the marker comes a moment later


async def records_of(kafka: KafkaForTests, name: str) -> list[Any]:
    where = TopicPartition(name, 0)
    async with AIOKafkaConsumer(
        bootstrap_servers=kafka.bootstrap, auto_offset_reset="earliest", group_id=None
    ) as consumer:
        consumer.assign([where])
        end = (await consumer.end_offsets([where]))[where]
        records: list[Any] = []
        while not records or records[-1].offset < end - 1:
            records += (await consumer.getmany(where, timeout_ms=1000)).get(where, [])
        return records


async def delete_records(bootstrap: str, topic: str, before: int) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.delete_records({TopicPartition(topic, 0): RecordsToDelete(before_offset=before)})
    finally:
        await admin.close()
