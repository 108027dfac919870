"""Test the dead letter topic against a real Kafka."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from queryable_app.serve.api.status import status_json
from tests.support.kafka import KafkaForTests
from tests.support.kafka_node import (
    node_on,
    records_of,
)
from tests.support.node import UNREACHABLE_KAFKA, bad, slice_payload
from tests.support.waiting import until


def test_dead_letter_has_its_origin(tmp_path: Path, kafka: KafkaForTests, topic: str) -> None:
    """The raw record is in `<applicationId>.dead-letter` with topic, partition, offset and reason, before the slice is
    applied."""

    async def run() -> None:
        async with node_on(tmp_path, kafka.bootstrap, topic, onBadRecord="DeadLetter") as node:
            payload = slice_payload(bad(0, b"k", f"not JSON {topic}", b"\xff raw"))
            await node.slices.write_dead_letters(payload)
            node.slices.apply(payload)

            found = [
                r
                for r in await records_of(kafka, "tests.users.r1.dead-letter")
                if r.headers[0][1].decode() == topic
            ]
            assert [(r.key, r.value) for r in found] == [(b"k", b"\xff raw")]
            assert dict(found[0].headers) == {
                "topic": topic.encode(),
                "partition": b"0",
                "offset": b"0",
                "reason": f"not JSON {topic}".encode(),
            }
            assert node.replicas.by_partition[0].position == 1

    asyncio.run(run())


LETTERS = 20
LARGE = b"x" * 30_000


@pytest.mark.parametrize(
    ("bytes_max", "sizes", "written"),
    [
        (20_000, {len(LARGE): 16_384}, {"whole": LETTERS, "truncated": 1}),
        (700, {len(LARGE): 0}, {"whole": LETTERS, "truncated": 1}),
        (80, {}, {"skipped": LETTERS + 1}),
    ],
    ids=["truncated", "without its value", "skipped"],
)
def test_too_large_dead_letter_stops_no_partition(
    tmp_path: Path,
    kafka: KafkaForTests,
    topic: str,
    bytes_max: int,
    sizes: dict[int, int],
    written: dict[str, int],
) -> None:
    """A too large dead letter is truncated, with headers that have its sizes, or skipped and counted; the position moves on."""
    dead = f"{topic}.dead-letter"
    kafka.create_topic(dead, 1, {"max.message.bytes": str(bytes_max)})

    async def run() -> None:
        async with node_on(tmp_path, kafka.bootstrap, topic, onBadRecord="DeadLetter") as node:
            node.dead_letters.name = dead
            values = [LARGE, *(b"small" for _ in range(LETTERS))]
            payload = slice_payload(
                *(bad(n, b"k%d" % n, "not JSON", value) for n, value in enumerate(values))
            )
            async with asyncio.timeout(60):
                await node.slices.write_dead_letters(payload)
            node.slices.apply(payload)

            assert node.replicas.by_partition[0].position == len(values)
            assert status_json(node)["deadLetters"]["written"] == written
            assert status_json(node)["deadLetters"]["waiting"] == {}
            if sizes:
                found = await records_of(kafka, dead)
                cut = {
                    int(headers["original-value-bytes"]): len(r.value)
                    for r in found
                    if "truncated" in (headers := dict(r.headers))
                }
                assert cut == sizes

    asyncio.run(run())


def test_status_names_partitions_that_wait_for_dead_letters(tmp_path: Path) -> None:
    """Without Kafka the slice waits, and status has the partition, the reason and the next attempt."""

    async def run() -> None:
        async with node_on(tmp_path, UNREACHABLE_KAFKA, "users", onBadRecord="DeadLetter") as node:
            waiting = asyncio.create_task(
                node.slices.write_dead_letters(slice_payload(bad(0, b"k", "not JSON")))
            )
            await until("it is named", lambda: status_json(node)["deadLetters"]["waiting"].get("0"))
            assert status_json(node)["deadLetters"]["waiting"]["0"]["reason"]
            waiting.cancel()
            await asyncio.wait([waiting])
            assert status_json(node)["deadLetters"]["waiting"] == {}

    asyncio.run(run())
