"""Test the row socket as Spark's tasks use it, with real stores."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from queryable_app.contract import ROW_SOCKET
from queryable_app.platform.clock import monotonic_ms
from queryable_app.serve.feed.row_socket import FRAME_BYTES_MAX, RowSocket
from queryable_app.serve.feed.slices import DeadLetter, Slices
from queryable_app.serve.node import Node
from queryable_app.wire.disk_format import decode_row
from queryable_app.wire.row_frames import ACK, LENGTH, SLICE, encode_end, encode_hello
from tests.support.node import bad, open_node, put, slice_frame
from tests.support.serve_process import serve_process
from tests.support.waiting import eventually, until

GENERATION = 4


class Rows:
    """Run a row socket with its node, and clients of it."""

    def __init__(self, node: Node, path: Path) -> None:
        self.node = node
        self.replica = node.replicas.by_partition[0]
        self.path = path
        self.socket = RowSocket(path, node.slices, lambda: node.last_read_ms)
        self.socket.generation = GENERATION

    async def connect(
        self, generation: int = GENERATION
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_unix_connection(self.path)
        writer.write(encode_hello(generation, 0, 0))
        return reader, writer


@asynccontextmanager
async def listening(tmp_path: Path, partitions: int = 1, **spec: Any) -> AsyncIterator[Rows]:
    node = open_node(tmp_path, partitions, **spec)
    rows = Rows(node, tmp_path / "rows.sock")
    await rows.socket.start()
    try:
        yield rows
    finally:
        await rows.socket.stop()
        node.replicas.close()


def test_end_frame_is_acknowledged_after_its_rows_are_stored(tmp_path: Path) -> None:
    """After the acknowledgement the rows are readable and the position is behind them."""

    async def run() -> None:
        async with listening(tmp_path) as rows:
            reader, writer = await rows.connect()
            for offset in range(50):
                writer.write(slice_frame(put(offset, b"k%d" % offset, b"v")))
            writer.write(encode_end(0, 0))

            assert await reader.readexactly(1) == ACK
            assert (rows.replica.position, len(list(rows.replica.store.rows()))) == (50, 50)
            writer.close()

    asyncio.run(run())


def test_frames_arrive_in_any_pieces(tmp_path: Path) -> None:
    """A frame that comes byte by byte, or with others in one piece, is the same frame."""

    async def run() -> None:
        async with listening(tmp_path) as rows:
            reader, writer = await rows.connect()
            sent = slice_frame(put(0, b"a", b"1")) + slice_frame(put(1, b"b", b"2")) + encode_end(0, 0)
            for at in range(len(sent)):
                writer.write(sent[at : at + 1])
                await writer.drain()

            assert await reader.readexactly(1) == ACK
            assert rows.replica.position == 2
            writer.close()

    asyncio.run(run())


def test_large_value_is_stored(tmp_path: Path) -> None:
    """A value of 5 MB between small ones is stored byte for byte."""
    value = bytes(range(256)) * 20_000

    async def run() -> None:
        async with listening(tmp_path) as rows:
            reader, writer = await rows.connect()
            writer.write(slice_frame(put(0, b"a", b"1")) + slice_frame(put(1, b"large", value)))
            writer.write(slice_frame(put(2, b"b", b"2")) + encode_end(0, 0))

            assert await reader.readexactly(1) == ACK
            stored = rows.replica.store.get(b"large")
            assert stored is not None
            assert decode_row(stored).value == value
            assert rows.replica.position == 3
            writer.close()

    asyncio.run(run())


@pytest.mark.parametrize("generation", [GENERATION - 1, GENERATION + 1], ids=["older", "unknown"])
def test_writer_of_another_generation_is_refused(
    tmp_path: Path, generation: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """A writer of another start is refused before it writes, with a line in the log."""

    async def run() -> None:
        async with listening(tmp_path) as rows:
            reader, writer = await rows.connect(generation)
            writer.write(slice_frame(put(0, b"a", b"1")))

            assert await _closed(reader)
            assert rows.replica.position == -1
            writer.close()

    asyncio.run(run())
    assert f'"reason": "generation {generation} is not the current one, 4"' in capfd.readouterr().err


@pytest.mark.parametrize(
    "rubbish",
    [
        LENGTH.pack(FRAME_BYTES_MAX + 1),
        LENGTH.pack(0),
        LENGTH.pack(2) + b"\x07x",
        LENGTH.pack(3) + bytes([SLICE, 1, 2]),
        slice_frame(put(0, b"a", b"1"), partition=9),
        encode_hello(GENERATION, 0, 0),
    ],
    ids=["too large", "empty", "unknown type", "cut off", "foreign partition", "second hello"],
)
def test_malformed_frame_closes_only_its_connection(
    tmp_path: Path, rubbish: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    """A malformed frame is refused with a line in the log, and another connection continues."""

    async def run() -> None:
        async with listening(tmp_path) as rows:
            other_reader, other = await rows.connect()
            reader, writer = await rows.connect()
            writer.write(rubbish)
            assert await _closed(reader)

            other.write(slice_frame(put(0, b"a", b"1")) + encode_end(0, 0))
            assert await other_reader.readexactly(1) == ACK
            for opened in (writer, other):
                opened.close()

    asyncio.run(run())
    assert '"event": "refused"' in capfd.readouterr().err


def test_no_slice_is_applied_after_connections_are_closed(tmp_path: Path) -> None:
    """After `close_connections` no position changes, whatever the old writers have sent."""

    async def run() -> None:
        async with listening(tmp_path) as rows:
            _, writer = await rows.connect()
            offset = 0
            while rows.replica.position < 20:
                writer.write(slice_frame(put(offset, b"a", b"1")))
                offset += 1
                await asyncio.sleep(0)
            writer.write(b"".join(slice_frame(put(offset + i, b"a", b"2")) for i in range(1000)))

            await rows.socket.close_connections()
            stood = rows.replica.position
            for _ in range(100):
                await asyncio.sleep(0)

            assert rows.replica.position == stood
            writer.close()

    asyncio.run(run())


def test_slow_store_slows_the_sender(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are not applied stay with the sender, and the node buffers none."""

    async def run() -> None:
        async with listening(tmp_path) as rows:
            started, proceed = asyncio.Event(), asyncio.Event()

            async def held_up(_: bytes) -> None:
                started.set()
                await proceed.wait()

            monkeypatch.setattr(rows.node.slices, "write_dead_letters", held_up)
            _, writer = await rows.connect()
            frame = slice_frame(put(0, b"a", b"x" * 100_000))
            for _ in range(100):
                writer.write(frame)
            await started.wait()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await writer.drain()
            proceed.set()
            async with asyncio.timeout(20):
                await writer.drain()
            writer.close()

    asyncio.run(run())


@pytest.mark.parametrize("together", [1, 2])
def test_complete_slices_are_applied_by_the_next_turn_of_the_loop(tmp_path: Path, together: int) -> None:
    """Slices that arrive complete are applied as soon as the loop reports their connection, without a task in between."""

    async def run() -> int:
        at_once = 0
        async with listening(tmp_path) as rows:
            with socket.socket(socket.AF_UNIX) as task:
                task.connect(str(rows.path))
                task.sendall(encode_hello(GENERATION, 0, 0))
                for first in range(0, 20 * together, together):
                    end = first + together
                    task.sendall(b"".join(slice_frame(put(n, b"a", b"1")) for n in range(first, end)))
                    for _ in range(2):  # the loop looks at its connections, then runs what is due
                        await asyncio.sleep(0)
                    at_once += rows.replica.position == end
                    await until("it is applied", lambda end=end: rows.replica.position == end)  # type: ignore[misc]
        return at_once

    # The first come before the connection is accepted, and another process may stretch a slice to a millisecond.
    assert asyncio.run(run()) >= 16


def test_part_of_a_slice_behind_a_complete_one_waits_for_its_rest(tmp_path: Path) -> None:
    """The complete slice is applied at once, and the other one when its rest arrives."""

    async def run() -> None:
        async with listening(tmp_path) as rows:
            with socket.socket(socket.AF_UNIX) as task:
                task.connect(str(rows.path))
                task.sendall(encode_hello(GENERATION, 0, 0))
                for end, rest_at in zip(range(2, 12, 2), (1, 3, 4, 9, -1), strict=True):
                    first, second = (slice_frame(put(offset, b"a", b"1")) for offset in (end - 2, end - 1))
                    task.sendall(first + second[:rest_at])
                    await until("the first is applied", lambda end=end: rows.replica.position == end - 1)  # type: ignore[misc]
                    task.sendall(second[rest_at:])
                    await until("the second is applied", lambda end=end: rows.replica.position == end)  # type: ignore[misc]

    asyncio.run(run())


@pytest.mark.parametrize("reads_arrive", [False, True])
def test_slices_that_wait_are_applied_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads_arrive: bool
) -> None:
    """Slices that arrived while another one was applied are one write, in their order. While reads arrive, each is its own."""

    async def run() -> int:
        writes = 0
        async with listening(tmp_path) as rows:
            apply = rows.replica.apply

            def counted(*changes: Any) -> None:
                nonlocal writes
                writes += 1
                apply(*changes)

            monkeypatch.setattr(rows.replica, "apply", counted)
            # In the future, so that it stays the latest read however long the machine takes.
            rows.node.last_read_ms = monotonic_ms() + 60_000 if reads_arrive else -1000
            frames = [slice_frame(put(offset, b"a", b"%d" % offset)) for offset in range(30)]
            reader, writer = await rows.connect()
            writer.write(b"".join(frames) + encode_end(0, 0) + frames[-1][:9])

            assert await reader.readexactly(1) == ACK
            stored = rows.replica.store.get(b"a")
            assert stored is not None
            assert decode_row(stored).value == b"29"
            assert rows.replica.state.rows == 30
            writer.write(frames[-1][9:] + slice_frame(put(30, b"a", b"30")) + encode_end(0, 0))
            assert await reader.readexactly(1) == ACK
            assert rows.replica.position == 31
            writer.close()
        return writes

    writes = asyncio.run(run())
    assert writes == 31 if reads_arrive else writes < 10


def test_lone_slice_with_a_dead_letter_waits_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dead letter of a slice that arrives alone is written before the slice is applied."""

    async def run() -> None:
        async with listening(tmp_path) as rows:
            written, asked = asyncio.Event(), asyncio.Event()

            class SlowDeadLetters:
                async def send_dead_letters(self, _: Sequence[DeadLetter]) -> None:
                    asked.set()
                    await written.wait()

            slices = Slices(rows.node.replicas, rows.node.codec, "DeadLetter", SlowDeadLetters())
            monkeypatch.setattr(rows.socket, "_slices", slices)
            _, writer = await rows.connect()
            writer.write(slice_frame(put(0, b"a", b"1")))
            await until("the first slice is applied", lambda: rows.replica.position == 1)

            writer.write(slice_frame(bad(1, b"k", "not JSON")))
            async with asyncio.timeout(5):
                await asked.wait()
            assert rows.replica.position == 1
            written.set()
            await until("the slice is applied", lambda: rows.replica.position == 2)
            writer.close()

    asyncio.run(run())


def test_leftover_socket_file_does_not_prevent_a_start(tmp_path: Path) -> None:
    """After kill -9 the socket's file still exists."""

    async def run() -> None:
        for _ in range(2):
            async with listening(tmp_path) as rows:
                rows.path.touch()
            (tmp_path / "rows.sock").write_text("left behind")

    asyncio.run(run())


async def _closed(reader: asyncio.StreamReader) -> bool:
    try:
        async with asyncio.timeout(5):
            return await reader.read() == b""
    except ConnectionResetError:
        return True


def test_complete_slices_of_a_disconnected_writer_are_applied(tmp_path: Path) -> None:
    """Complete slices are applied, and a partial one is not."""

    async def run() -> None:
        async with listening(tmp_path) as rows:
            _, writer = await rows.connect()
            writer.write(slice_frame(put(0, b"a", b"1")) + slice_frame(put(1, b"b", b"2"))[:-1])
            writer.close()
            await until("the first slice is applied", lambda: rows.replica.position == 1)

    asyncio.run(run())


def test_accept_loop_recovers_from_missing_descriptors(tmp_path: Path) -> None:
    """A task that connects without a free descriptor is served once there is one, and the log has one
    line."""
    with serve_process(tmp_path) as served, socket.socket(socket.AF_UNIX) as task:
        with served.without_descriptors():
            task.connect(str(Path(served.settings.run_dir) / ROW_SOCKET))
            task.sendall(encode_hello(99, 0, 0))
            eventually("it cannot be accepted", lambda: served.events("accept-failed"))

        task.settimeout(30)
        assert task.recv(1) == b""
        assert "generation 99 is not the current one" in served.events("refused")[0]["reason"]
        assert len(served.events("accept-failed")) == 1
