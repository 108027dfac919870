"""Test the control socket as ingest uses it, with real stores and a real row socket."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from queryable_app.contract import GENERATION_FILE, ROW_SOCKET
from queryable_app.serve.feed.control_messages import LINE_BYTES_MAX
from queryable_app.serve.store.store_errors import StoreUnavailable
from queryable_app.wire.row_frames import ACK, encode_end, encode_hello
from tests.support.control_socket import Ingest, ingest, node_running
from tests.support.node import put, slice_frame, slice_payload
from tests.support.waiting import until


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
