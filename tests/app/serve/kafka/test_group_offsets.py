"""Test that positions are committed for lag tools, against a real Kafka."""

from __future__ import annotations

import asyncio
from pathlib import Path

from aiokafka import AIOKafkaConsumer, TopicPartition

from queryable_app.serve.kafka.group_offsets import GroupOffsets
from tests.support.kafka import KafkaForTests
from tests.support.kafka_node import (
    produce,
)
from tests.support.node import open_node, put, slice_payload


def test_positions_are_committed_for_lag_tools(tmp_path: Path, kafka: KafkaForTests, topic: str) -> None:
    """The application's group has the positions of the replicas, and follows them."""
    where = TopicPartition(topic, 0)

    async def run() -> None:
        await produce(kafka.bootstrap, topic, b"1", b"2")
        node = open_node(tmp_path, topic=topic, bootstrap=kafka.bootstrap)
        positions = GroupOffsets(
            {"bootstrap_servers": kafka.bootstrap}, topic, "tests.users.r1", node.replicas
        )
        async with AIOKafkaConsumer(bootstrap_servers=kafka.bootstrap, group_id="tests.users.r1") as tool:
            tool.assign([where])
            for offset in range(2):
                node.slices.apply(slice_payload(put(offset, b"k", b"v")))
                await positions.commit()
                assert await tool.committed(where) == offset + 1
        await positions.stop()
        node.replicas.close()

    asyncio.run(run())
