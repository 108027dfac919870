"""Test the control socket as ingest uses it, with real stores and a real row socket."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from queryable_app.contract import GENERATION_FILE, ROW_SOCKET
from queryable_app.serve.feed.control_messages import LINE_BYTES_MAX
from queryable_app.serve.store.store_errors import StoreUnavailable
from queryable_app.wire.row_frames import ACK, encode_end, encode_hello
from tests.support.control_socket import Ingest, connected, ingest, node_running
from tests.support.node import put, slice_frame, slice_payload
from tests.support.waiting import until


def test_start_begins_at_the_stores_positions(tmp_path: Path) -> None:
    """A new replica starts at the earliest record, the others at their positions."""

    async def run() -> None:
        async with node_running(tmp_path) as node:
            node.slices.apply(slice_payload(put(4, b"a", b"1")))
            client = await ingest(node)

            assert await client.start() == {"type": "start", "generation": 1, "positions": {"0": 5, "1": -2}}
            client.writer.close()

    asyncio.run(run())


def test_ingest_receives_hydrated_once_all_replicas_are_complete(tmp_path: Path) -> None:
    """serve sends `hydrated` once all are complete, and to each ingest that connects later."""

    async def run() -> None:
        async with connected(tmp_path) as (node, client):
            assert (await client.start(latest=0))["type"] == "start"
            for replica in node.replicas.by_partition.values():
                replica.note_end_offset(1, 0)
            assert await client.receive() == {"type": "hydrated"}

            later = await ingest(node, pid=78)
            assert await later.receive() == {"type": "hydrated"}
            client.writer.close()
            later.writer.close()

    asyncio.run(run())


def test_every_start_has_a_new_generation(tmp_path: Path) -> None:
    """Generations rise with each start, also across restarts of the node."""

    async def run() -> None:
        for generation in (1, 3):
            async with connected(tmp_path) as (_, client):
                assert (await client.start())["generation"] == generation
                assert (await client.start())["generation"] == generation + 1

    asyncio.run(run())


def test_start_fences_older_writers(tmp_path: Path) -> None:
    """A start closes the row connections of older generations and refuses new ones. The new generation may
    write."""

    async def run() -> None:
        async with connected(tmp_path) as (node, client):
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


def test_newest_ingest_replaces_the_older_one(tmp_path: Path) -> None:
    """The older ingest receives the reason and is disconnected, and status shows the newer one."""

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
def test_malformed_message_is_refused(tmp_path: Path, line: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    """A malformed message closes the connection with a line in the log, and the next ingest may connect."""

    async def run() -> None:
        async with connected(tmp_path) as (node, client):
            client.writer.write(line)

            assert await client.closed()
            client.writer.close()
            (await ingest(node)).writer.close()

    asyncio.run(run())
    assert '"event": "refused"' in capfd.readouterr().err


def test_start_leaves_out_a_store_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start names the partition of an unwritable store as retrying, and the connection stays."""

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


def test_start_waits_until_the_generation_is_written(tmp_path: Path) -> None:
    """serve answers with a start once the generation is on disk; until then the connection stays and the older query writes."""

    async def run() -> None:
        async with connected(tmp_path) as (node, client):
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

    asyncio.run(run())


def test_restart_begins_at_the_stores_positions(tmp_path: Path) -> None:
    """A restart by the watchdog makes a new start at the stores' positions, with the same partitions."""

    async def run() -> None:
        async with connected(tmp_path) as (node, client):
            assert (await client.start())["generation"] == 1
            node.slices.apply(slice_payload(put(4, b"a", b"1")))

            node.watchdog.restart()
            assert (await client.receive())["type"] == "wanted"
            assert await client.start() == {"type": "start", "generation": 2, "positions": {"0": 5, "1": -2}}

    asyncio.run(run())
