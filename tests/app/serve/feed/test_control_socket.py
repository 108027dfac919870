"""The control socket as ingest uses it: over a real Unix socket, with real stores and a real row socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryable_app.contract import CONTROL_SOCKET, GENERATION_FILE, ROW_SOCKET, ObservedTopic
from queryable_app.serve.api.status import readiness, status_json
from queryable_app.serve.feed.control_messages import LINE_BYTES_MAX
from queryable_app.serve.feed.data_loss import data_loss_reason
from queryable_app.serve.node import Node
from queryable_app.serve.store.store_errors import StoreUnavailable
from queryable_app.wire.row_frames import ACK, encode_end, encode_hello
from tests.support.node import open_node, put, slice_frame, slice_payload
from tests.support.waiting import until


class Ingest:
    """The other end of the control socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, **message: Any) -> None:
        self.writer.write(json.dumps(message).encode() + b"\n")

    async def receive(self) -> dict[str, Any]:
        async with asyncio.timeout(5):
            return dict(json.loads(await self.reader.readline()))

    async def closed(self) -> bool:
        try:
            async with asyncio.timeout(5):
                return await self.reader.read() == b""
        except ConnectionResetError:
            return True

    async def start(self, id: str = "T1", earliest: int = 0, latest: int = 100) -> dict[str, Any]:
        """Tell of the topic, and be told where to start."""
        partitions = range(2)
        self.send(
            type="topic",
            id=id,
            partitions=2,
            earliest={str(p): earliest for p in partitions},
            latest={str(p): latest for p in partitions},
        )
        return await self.receive()


@asynccontextmanager
async def node_running(tmp_path: Path, **spec: Any) -> AsyncIterator[Node]:
    node = open_node(tmp_path, 2, **spec)
    await node.start()
    try:
        yield node
    finally:
        await node.stop()


async def ingest(node: Node, pid: int = 77) -> Ingest:
    client = Ingest(*await asyncio.open_unix_connection(Path(node.settings.run_dir) / CONTROL_SOCKET))
    client.send(type="hello", protocol=1, pid=pid)
    assert await client.receive() == {"type": "wanted", "topic": "users", "partitions": [0, 1]}
    return client


def test_a_start_begins_at_the_stores_positions(tmp_path: Path) -> None:
    """A new copy starts at the earliest record, the others at what they have not got."""

    async def run() -> None:
        async with node_running(tmp_path) as node:
            node.slices.apply(slice_payload(put(4, b"a", b"1")))
            client = await ingest(node)

            assert await client.start() == {"type": "start", "generation": 1, "positions": {"0": 5, "1": -2}}
            client.writer.close()

    asyncio.run(run())


def test_ingest_hears_when_all_replicas_are_complete(tmp_path: Path) -> None:
    """serve says it once when they become so, and to each ingest that comes later."""

    async def run() -> None:
        async with node_running(tmp_path) as node:
            client = await ingest(node)
            assert (await client.start(latest=0))["type"] == "start"
            for replica in node.replicas.by_partition.values():
                replica.note_end_offset(1, 0)
            assert await client.receive() == {"type": "hydrated"}

            later = await ingest(node, pid=78)
            assert await later.receive() == {"type": "hydrated"}
            client.writer.close()
            later.writer.close()

    asyncio.run(run())


def test_a_missing_topic_is_waited_for(tmp_path: Path) -> None:
    """While there is no topic nothing starts; status says what ingest says."""

    async def run() -> None:
        async with node_running(tmp_path) as node:
            client = await ingest(node)
            client.send(type="topic", id=None)
            client.send(type="state", state="waiting-for-topic", mode="realtime", detail="users", starts=0)
            await until("the state", lambda: node.ingest_status.state == "waiting-for-topic")

            assert (node.ingest_status.pid, node.ingest_status.detail) == (77, "users")
            assert (await client.start())["generation"] == 1
            client.writer.close()

    asyncio.run(run())


def test_a_topic_that_stays_missing_is_a_failure(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """After its time status and readiness say it, the log once, and copies stay; a topic made later is read."""

    async def run() -> None:
        async with node_running(tmp_path, settings={"topic_wait_seconds": 0}) as node:
            node.slices.apply(slice_payload(put(4, b"a", b"1")))
            client = await ingest(node)
            client.send(type="topic", id=None)
            client.send(type="state", state="waiting-for-topic", mode="realtime", detail="users", starts=0)
            await until("the failure", lambda: node.ingest_status.state == "failed")

            said = status_json(node)["ingest"]["detail"]
            assert said.startswith("there is no topic users")
            assert readiness(node)["ingestFailed"] == said
            assert [(c.failed, c.position) for c in node.replicas.by_partition.values()] == [
                (None, 5),
                (None, -1),
            ]
            assert (await client.start())["positions"] == {"0": 5, "1": -2}
            client.send(type="state", state="streaming", mode="realtime", detail="", starts=1)
            await until("it is read", lambda: readiness(node)["ingestFailed"] is None)
            client.writer.close()

    asyncio.run(run())
    assert capfd.readouterr().err.count('"event": "topic-missing"') == 1


def test_a_topic_that_comes_in_time_is_no_failure(tmp_path: Path) -> None:
    """The wait ends with the topic."""

    async def run() -> None:
        async with node_running(tmp_path, settings={"topic_wait_seconds": 0}) as node:
            client = await ingest(node)
            for state in ("waiting-for-topic", "streaming"):  # in one piece: no time passes in between
                client.send(type="state", state=state, mode="realtime", detail="", starts=0)
            assert (await client.start())["type"] == "start"

            assert node.ingest_status.state == "streaming"
            client.writer.close()

    asyncio.run(run())


def test_a_permanent_failure_stays_until_ingest_gets_further(tmp_path: Path) -> None:
    """An ingest that is started again says the same or more; meanwhile status and readiness tell what is wrong."""

    async def run() -> None:
        async with node_running(tmp_path) as node:
            for pid in (1, 2):
                client = await ingest(node, pid)
                client.send(type="state", state="starting", mode="", detail="", starts=0)
                if pid == 1:
                    client.send(
                        type="state",
                        state="failed",
                        mode="",
                        detail="no such column",
                        starts=0,
                        reason="TransformRefused",
                    )
                    await until("the failure", lambda: node.ingest_status.state == "failed")
                    client.writer.close()
                    await until("no ingest", lambda: node.ingest_status.state == "absent")
                assert status_json(node)["ingest"]["failure"] == {
                    "reason": "TransformRefused",
                    "message": "no such column",
                }
                assert readiness(node)["ingestFailed"] == "no such column"
            client.send(type="state", state="streaming", mode="", detail="", starts=1)
            await until("it streams", lambda: node.ingest_status.state == "streaming")
            assert status_json(node)["ingest"]["failure"] is None
            client.writer.close()

    asyncio.run(run())


@pytest.mark.parametrize("reason", [{}, {"reason": ""}, {"reason": 7}, {"reason": "not a word"}])
def test_a_failure_without_a_reason_may_pass(tmp_path: Path, reason: dict[str, Any]) -> None:
    """An ingest of an earlier version gives none."""

    async def run() -> None:
        async with node_running(tmp_path) as node:
            client = await ingest(node)
            client.send(type="state", state="failed", mode="", detail="why", starts=0, **reason)
            await until("the failure", lambda: node.ingest_status.state == "failed")
            assert status_json(node)["ingest"]["failure"] is None
            assert readiness(node)["ingestFailed"] == "why"
            client.writer.close()

    asyncio.run(run())


def test_every_start_has_a_generation_of_its_own(tmp_path: Path) -> None:
    """Generations rise with each start and go on rising after a restart of the node."""

    async def run() -> None:
        for generation in (1, 3):
            async with node_running(tmp_path) as node:
                client = await ingest(node)
                assert (await client.start())["generation"] == generation
                assert (await client.start())["generation"] == generation + 1
                client.writer.close()

    asyncio.run(run())


def test_a_start_shuts_older_writers_out(tmp_path: Path) -> None:
    """Row connections of the generation before are closed, cannot come back, and the new one's may write."""

    async def run() -> None:
        async with node_running(tmp_path) as node:
            client = await ingest(node)
            rows = Path(node.settings.run_dir) / ROW_SOCKET

            async def writer_of(generation: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
                reader, writer = await asyncio.open_unix_connection(rows)
                writer.write(encode_hello(generation, 0, 0))
                return reader, writer

            first = (await client.start())["generation"]
            zombie_reader, zombie = await writer_of(first)
            zombie.write(slice_frame(put(0, b"a", b"1")) + encode_end(0, 0))
            assert await zombie_reader.readexactly(1) == ACK

            started = await client.start()
            assert started["positions"]["0"] == 1
            assert await Ingest(zombie_reader, zombie).closed()
            again_reader, again = await writer_of(first)
            again.write(slice_frame(put(1, b"a", b"zombie")))
            assert await Ingest(again_reader, again).closed()

            reader, writer = await writer_of(started["generation"])
            writer.write(slice_frame(put(1, b"a", b"2")) + encode_end(0, 0))
            assert await reader.readexactly(1) == ACK
            for opened in (zombie, again, writer, client.writer):
                opened.close()

    asyncio.run(run())


def test_the_newest_ingest_wins(tmp_path: Path) -> None:
    """The first ingest is told why and its connection is closed; status is the second one's."""

    async def run() -> None:
        async with node_running(tmp_path) as node:
            older = await ingest(node, pid=1)
            newer = await ingest(node, pid=2)

            assert await older.receive() == {"type": "superseded"}
            assert await older.closed()
            assert (node.ingest_status.pid, node.ingest_status.state) == (2, "starting")
            assert (await newer.start())["type"] == "start"
            for client in (older, newer):
                client.writer.close()
            await until("no ingest", lambda: node.ingest_status.state == "absent")

    asyncio.run(run())


@pytest.mark.parametrize(
    "line",
    [
        b"not json\n",
        b"[]\n",
        b'{"type":"topic","id":"T","partitions":1,"earliest":{"x":1},"latest":{}}\n',
        b'{"type":"topic","id":"T","partitions":-1,"earliest":{},"latest":{}}\n',
        b'{"type":"topic","id":7}\n',
        b'{"type":"state","state":"happy","starts":1}\n',
        b'{"type":"dance"}\n',
        b"x" * (LINE_BYTES_MAX + 2) + b"\n",
    ],
    ids=["not JSON", "no object", "offsets", "partitions", "id", "state", "type", "too long"],
)
def test_rubbish_is_refused(tmp_path: Path, line: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    """A message that cannot be ends the conversation with a line in the log; the next ingest is welcome."""

    async def run() -> None:
        async with node_running(tmp_path) as node:
            client = await ingest(node)
            client.writer.write(line)

            assert await client.closed()
            client.writer.close()
            (await ingest(node)).writer.close()

    asyncio.run(run())
    assert '"event": "refused"' in capfd.readouterr().err


@pytest.mark.parametrize(
    ("topic", "why"),
    [
        ({"id": "T2"}, "the topic was deleted and made again"),
        ({"latest": 3}, "the log ends at 3, before the position 5"),
        ({"earliest": 9}, "records from 5 to 9 are gone"),
    ],
    ids=["made again", "cut off", "expired"],
)
def test_lost_data_fails_the_copy_or_rebuilds_it(tmp_path: Path, topic: dict[str, Any], why: str) -> None:
    """Fail keeps the rows readable and leaves the partition out; Rebuild starts afresh at the earliest record."""

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
            else:
                assert started["positions"]["0"] == -2
                assert (replica.failed, replica.position, replica.store.get(b"a")) == (None, -1, None)
            client.writer.close()

    for policy in ("Fail", "Rebuild"):
        (tmp_path / policy).mkdir()
        asyncio.run(run(policy))


def test_rows_that_come_after_the_look_at_the_logs_end_are_no_loss(tmp_path: Path) -> None:
    """The query streams on while ingest looks: the position is beyond the end that was seen, and that is well."""

    async def run() -> None:
        async with node_running(tmp_path) as node:
            client = await ingest(node)
            await client.start()
            client.send(type="state", state="streaming", mode="realtime", detail="", starts=1)
            node.slices.apply(slice_payload(put(4, b"a", b"1")))

            started = await client.start(latest=3)

            assert started["positions"] == {"0": 5, "1": -2}
            assert node.replicas.by_partition[0].failed is None
            client.writer.close()

    asyncio.run(run())


def test_a_partition_that_the_topic_has_not_is_failed(tmp_path: Path) -> None:
    """A topic made again with fewer partitions leaves copies without one, and they say so."""

    async def run() -> None:
        async with node_running(tmp_path) as node:
            client = await ingest(node)
            client.send(type="topic", id="T", partitions=1, earliest={"0": 0}, latest={"0": 0})

            assert (await client.receive())["positions"] == {"0": -2}
            assert node.replicas.by_partition[1].failed is not None
            client.writer.close()

    asyncio.run(run())


def test_a_topic_that_has_grown_is_seen(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """One event says what to do, status has both numbers, and the new partition is not read."""

    async def run() -> None:
        async with node_running(tmp_path) as node:
            assert status_json(node)["topicPartitions"] is None
            client = await ingest(node)
            await client.start()
            told: dict[str, Any] = {"earliest": {"0": 0, "1": 0}, "latest": {"0": 0, "1": 0}}
            for _ in range(2):
                client.send(type="topic", id="T1", partitions=3, **told)
                assert (await client.receive())["positions"].keys() == {"0", "1"}

            assert (status_json(node)["topicPartitions"], status_json(node)["placedPartitions"]) == (3, 2)
            client.writer.close()

    asyncio.run(run())
    said = [line for line in capfd.readouterr().err.splitlines() if "partitions-changed" in line]
    assert len(said) == 1
    assert "partitions from 2 on are not read" in said[0]
    assert "new revision" in said[0]


@given(position=st.integers(-1, 30), earliest=st.integers(0, 30), length=st.integers(0, 30))
def test_nothing_is_lost_exactly_when_the_position_is_within_the_log(
    position: int, earliest: int, length: int
) -> None:
    """A copy that has nothing can start anywhere; any other needs its next record, or the end, to be there."""
    seen = ObservedTopic("T", 1, {0: earliest}, {0: earliest + length})

    lost = data_loss_reason(position, "T", 0, seen)

    assert (lost is None) == (position == -1 or earliest <= position <= earliest + length)


def test_one_store_that_cannot_be_written_does_not_keep_ingest_from_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its partition is left out of the start, and is named as one that is tried again; the connection stays."""

    async def run() -> None:
        async with node_running(tmp_path) as node:
            broken = node.replicas.by_partition[0].store

            def refuse(topic_id: str) -> None:
                raise StoreUnavailable("no space left")

            monkeypatch.setattr(broken, "set_topic_id", refuse)
            client = await ingest(node)

            assert await client.start() == {
                "type": "start",
                "generation": 1,
                "positions": {"1": -2},
                "retrying": [0],
            }
            assert await client.receive() == {"type": "wanted", "topic": "users", "partitions": [0, 1]}
            assert (await client.start())["positions"] == {"0": -2, "1": -2}
            client.writer.close()

    asyncio.run(run())


def test_ingest_waits_for_its_start_while_the_generation_cannot_be_written(tmp_path: Path) -> None:
    """The connection stays, and the query that runs may write on; the start follows when the disk takes it."""

    async def run() -> None:
        async with node_running(tmp_path) as node:
            client = await ingest(node)
            assert (await client.start())["generation"] == 1
            in_the_way = Path(node.settings.data_dir) / f"{GENERATION_FILE}.new"
            in_the_way.mkdir()
            waiting = asyncio.create_task(client.start())
            await asyncio.sleep(0)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1.2):
                    await asyncio.shield(waiting)
            assert node._rows.generation == 1
            in_the_way.rmdir()

            assert (await waiting)["generation"] == 2
            client.writer.close()

    asyncio.run(run())


def test_a_restart_has_ingest_start_again_where_the_stores_are(tmp_path: Path) -> None:
    """Although nothing else is wanted: what the watchdog needs for a query that brings nothing."""

    async def run() -> None:
        async with node_running(tmp_path) as node:
            client = await ingest(node)
            assert (await client.start())["generation"] == 1
            node.slices.apply(slice_payload(put(4, b"a", b"1")))

            node.watchdog.restart()
            assert (await client.receive())["type"] == "wanted"
            assert await client.start() == {"type": "start", "generation": 2, "positions": {"0": 5, "1": -2}}
            client.writer.close()

    asyncio.run(run())
