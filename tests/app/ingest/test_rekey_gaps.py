"""Test how the rekey job finds source offsets without a record, at a real broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from queryable_app.ingest.rekey_gaps import SourceGaps
from queryable_app.platform.processes import free_ports
from tests.integration import topics
from tests.support.kafka import KafkaForTests


@pytest.fixture
def jvm(spark: SparkSession) -> Any:
    return spark._jvm


@pytest.fixture
def gaps(jvm: Any, kafka: KafkaForTests, request: pytest.FixtureRequest) -> Iterator[SourceGaps]:
    """Yield the gaps of a topic whose one partition has a record, an aborted record and two transaction markers."""
    topic = request.node.name.replace("_", "-")
    topics.create(kafka.bootstrap, topic, 1)
    client = topics.producer(kafka.bootstrap, **{"transactional.id": topic})
    client.init_transactions(20)
    for finish in (client.commit_transaction, client.abort_transaction):
        client.begin_transaction()
        client.produce(topic, key=b"k", value=b"1")
        client.flush(20)  # an aborted transaction drops what was not sent
        finish(20)
    topics.wait_for_markers(kafka.bootstrap, topic)
    assert topics.ends(kafka.bootstrap, topic) == {0: 4}
    found = SourceGaps(jvm, kafka.bootstrap, {}, topic)
    yield found
    found.close()


def test_run_moves_over_markers_and_aborted_records(gaps: SourceGaps) -> None:
    """A partition that stands still behind its last record may move to the end, and one that has just moved is left alone."""
    assert gaps.look([1]) == {}
    assert gaps.look([1]) == {0: 4}
    assert gaps.look([4]) == {}
    assert gaps.look([4]) == {}


def test_run_waits_for_a_record_that_is_there(gaps: SourceGaps) -> None:
    """A run never moves over a record, and the record is looked up once."""
    assert [gaps.look([0]) for _ in range(3)] == [{}, {}, {}]
    gaps._consumer.close()  # a further look-up would fail
    assert gaps.look([0]) == {}


def test_unreachable_broker_moves_nothing(jvm: Any) -> None:
    """Without an answer from Kafka no partition moves."""
    (port,) = free_ports(1)
    gaps = SourceGaps(jvm, f"127.0.0.1:{port}", {}, "topic")
    gaps.look([1])
    assert gaps.look([1]) == {}
