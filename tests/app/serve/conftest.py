"""Provide nodes that hydrate from one another, and topics in the shared Kafka."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.kafka import KafkaForTests
from tests.support.trio import Trio


@pytest.fixture
def trio(tmp_path: Path) -> Iterator[Trio]:
    with Trio(tmp_path) as started:
        yield started


@pytest.fixture
def slow_trio(tmp_path: Path) -> Iterator[Trio]:
    """Slow a hydration down to two to three seconds, so that a test can act during it."""
    with Trio(tmp_path, mb_per_second=2) as started:
        started.fill(0)
        yield started


@pytest.fixture
def topic(kafka: KafkaForTests) -> str:
    """Return the name of a new topic with one partition."""
    name = f"node-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(name, 1)
    return name
