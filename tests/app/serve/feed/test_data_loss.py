"""Test what a start of ingest does with replicas whose records the topic lost, over a real control socket."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryable_app.contract import ObservedTopic
from queryable_app.platform.clock import monotonic_ms
from queryable_app.serve.api.status import status_json
from queryable_app.serve.feed.data_loss import data_loss_reason
from tests.support.control_socket import connected, ingest, node_running
from tests.support.node import put, slice_payload


@pytest.mark.parametrize(
    ("topic", "why", "compared"),
    [
        ({"id": "T2"}, "the topic was deleted and made again", False),
        ({"latest": 3}, "the log ends at 3, before the position 5", False),
        ({"earliest": 9}, "records from 5 to 9 are gone", True),
    ],
    ids=["made again", "cut off", "expired"],
)
def test_data_loss_fails_or_rebuilds_the_replica(
    tmp_path: Path, topic: dict[str, Any], why: str, compared: bool
) -> None:
    """Fail keeps the rows readable and leaves the partition out. If its log is another one, its lag is unknown from then on,
    whatever the new end is. Rebuild starts over at the earliest record."""

    async def run(policy: str) -> None:
        async with node_running(tmp_path / policy, onDataLoss=policy) as node:
            replica = node.replicas.by_partition[0]
            client = await ingest(node)
            await client.start()
            node.slices.apply(slice_payload(put(4, b"a", b"1")))
            client.send(type="state", state="restarting", mode="realtime", detail="", starts=1)

            started = await client.start(**topic)

            if policy == "Fail":
                assert "0" not in started["positions"]
                assert replica.failed is not None
                assert why in replica.failed
                assert replica.store.get(b"a") is not None
                replica.note_end_offset(monotonic_ms(), replica.position)
                assert (replica.end_offset, replica.fresh_as_of_ms >= 0) == (
                    (5, True) if compared else (-1, False)
                )
            else:
                assert started["positions"]["0"] == -2
                assert (replica.failed, replica.position, replica.store.get(b"a")) == (None, -1, None)
            client.writer.close()

    for policy in ("Fail", "Rebuild"):
        (tmp_path / policy).mkdir()
        asyncio.run(run(policy))


def test_rows_beyond_the_observed_end_offset_are_no_data_loss(tmp_path: Path) -> None:
    """The query streams while ingest looks at the topic, so the position may be beyond the end offset that
    it saw."""

    async def run() -> None:
        async with connected(tmp_path) as (node, client):
            await client.start()
            client.send(type="state", state="streaming", mode="realtime", detail="", starts=1)
            node.slices.apply(slice_payload(put(4, b"a", b"1")))

            started = await client.start(latest=3)

            assert started["positions"] == {"0": 5, "1": -2}
            assert node.replicas.by_partition[0].failed is None

    asyncio.run(run())


def test_partition_missing_in_the_topic_fails(tmp_path: Path) -> None:
    """A topic that was recreated with fewer partitions fails the replicas of the others."""

    async def run() -> None:
        async with connected(tmp_path) as (node, client):
            client.send(type="topic", id="T", partitions=1, earliest={"0": 0}, latest={"0": 0})

            assert (await client.receive())["positions"] == {"0": -2}
            assert node.replicas.by_partition[1].failed is not None

    asyncio.run(run())


def test_grown_topic_is_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """One event has the advice, status has both numbers, and the new partition is not read."""

    async def run() -> None:
        async with node_running(tmp_path) as node:
            assert status_json(node)["topicPartitions"] is None
            client = await ingest(node)
            await client.start()
            offsets: dict[str, Any] = {"earliest": {"0": 0, "1": 0}, "latest": {"0": 0, "1": 0}}
            for _ in range(2):
                client.send(type="topic", id="T1", partitions=3, **offsets)
                assert (await client.receive())["positions"].keys() == {"0", "1"}

            assert (status_json(node)["topicPartitions"], status_json(node)["placedPartitions"]) == (3, 2)
            client.writer.close()

    asyncio.run(run())
    logged = [line for line in capfd.readouterr().err.splitlines() if "partitions-changed" in line]
    assert len(logged) == 1
    assert "partitions from 2 on are not read" in logged[0]
    assert "new revision" in logged[0]


@given(position=st.integers(-1, 30), earliest=st.integers(0, 30), length=st.integers(0, 30))
def test_position_within_the_log_is_no_data_loss(position: int, earliest: int, length: int) -> None:
    """An empty replica can start anywhere. Any other needs its next record, or the end offset, to be in
    the log."""
    seen = ObservedTopic("T", 1, {0: earliest}, {0: earliest + length})

    lost = data_loss_reason(position, "T", 0, seen)

    assert (lost is None) == (position == -1 or earliest <= position <= earliest + length)
