"""What every test may ask for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.kafka import KafkaForTests, embedded_kafka


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaForTests]:
    """One real Kafka for the whole run; topics are the tests' own. A test that kills it starts it again."""
    with embedded_kafka(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker
