"""Test that gaps are proven empty against a real Kafka with transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from queryable_app.serve.store.replica import Replica
from tests.support.kafka import KafkaForTests
from tests.support.kafka_node import (
    node_on,
    produce,
    produce_in_transaction,
)
from tests.support.node import put, slice_payload
from tests.support.waiting import until


@pytest.mark.parametrize("commit", [True, False], ids=["commit marker", "aborted"])
def test_trailing_markers_are_proven_away(
    tmp_path: Path, kafka: KafkaForTests, topic: str, commit: bool
) -> None:
    """A replica reaches the end offset behind a commit marker or an aborted transaction, which Spark never delivers."""

    async def run() -> None:
        await produce_in_transaction(kafka.bootstrap, topic, commit)
        async with node_on(tmp_path, kafka.bootstrap, topic) as node:
            replica = node.replicas.by_partition[0]
            await until("an end", lambda: replica.end_offset == 2)
            if commit:
                node.slices.apply(slice_payload(put(0, b"k", b"v")))
                assert replica.position == 1
            await until("the end reached", lambda: replica.position == 2)
            assert replica.complete

    asyncio.run(run())


def test_existing_record_is_never_skipped(
    tmp_path: Path, kafka: KafkaForTests, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gap is proven up to the first record that ingest still has to bring, and not beyond."""

    async def run() -> None:
        await produce_in_transaction(kafka.bootstrap, topic, False)
        await produce(kafka.bootstrap, topic, b"there")
        await produce_in_transaction(kafka.bootstrap, topic, False)
        async with node_on(tmp_path, kafka.bootstrap, topic) as node:
            replica = node.replicas.by_partition[0]
            await until("the record's offset", lambda: replica.position == 2)
            await until("a later end", lambda: replica.end_offset == 5)
            looks, quiet = 0, node._gaps._quiet

            def counted(now: float) -> Sequence[Replica]:
                nonlocal looks
                looks += 1
                return quiet(now)

            monkeypatch.setattr(node._gaps, "_quiet", counted)
            await until("a wrong proof would have shown", lambda: looks > 5)
            assert (replica.position, replica.complete) == (2, False)

            node.slices.apply(slice_payload(put(2, b"k", b"there")))
            await until("the end reached", lambda: replica.position == 5)

    asyncio.run(run())
