"""Test posted records against a real Kafka."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

import pytest

from queryable_app.errors import Failure, Reason
from tests.support.kafka import KafkaForTests
from tests.support.kafka_node import (
    node_on,
)
from tests.support.node import UNREACHABLE_KAFKA


def test_posted_record_has_its_offset(tmp_path: Path, kafka: KafkaForTests, topic: str) -> None:
    """The offset comes after the broker's acknowledgement; a tombstone is a record too."""

    async def run() -> None:
        async with node_on(tmp_path, kafka.bootstrap, topic) as node:
            assert await node.producer.send(b"k", b"v", 0) == 0
            assert await node.producer.send(b"k", None, 0) == 1
            assert await node.end_offsets.latest([0]) == {0: 2}

    asyncio.run(run())


def test_record_beyond_the_topics_limit_is_too_large(tmp_path: Path, kafka: KafkaForTests) -> None:
    """The broker's limit is answered as `too_large`, and the next record goes through."""
    name = f"small-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(name, 1, {"max.message.bytes": "1000"})

    async def run() -> None:
        async with node_on(tmp_path, kafka.bootstrap, name) as node:
            with pytest.raises(Failure) as raised:
                await node.producer.send(b"k", b"x" * 2000, 0)
            assert raised.value.reason is Reason.TOO_LARGE
            assert await node.producer.send(b"k", b"v", 0) == 0

    asyncio.run(run())


def test_posted_record_is_refused_in_time_without_kafka(tmp_path: Path) -> None:
    """The record was not written, and the answer says so soon after the deadline."""

    async def run() -> None:
        async with node_on(tmp_path, UNREACHABLE_KAFKA, "users") as node:
            with pytest.raises(Failure) as raised:
                await node.producer.send(b"k", b"v", 0, deadline_seconds=1)
            assert raised.value.reason is Reason.NOT_AVAILABLE

    asyncio.run(run())
