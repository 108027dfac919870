"""Test fetches that a peer, a restart or a full disk interrupts."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from queryable_app.serve.replication import checkpoints, hydration
from queryable_app.serve.replication.checkpoints import Checkpoints
from queryable_app.serve.replication.staging import StagedFile, StagingDirectory
from queryable_app.serve.store.shared_memory import SharedMemory
from queryable_app.serve.store.store import Store
from queryable_app.wire.disk_format import ReplicaState
from tests.support.faulty_node import FaultyNode
from tests.support.served import Served
from tests.support.trio import IDENTITY, ROWS, Trio, change_checkpoints, complete, leftovers_are_gone
from tests.support.waiting import eventually


@pytest.fixture
def at_the_end() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def bytes_there(trio: Trio) -> int:
    files = trio.into.with_name("p0000.incoming").glob("files/*")
    return sum(file.stat().st_size for file in files)


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the length of each range that peers send from now on."""
    read, lengths = Checkpoints.read, []

    async def counted(self: Checkpoints, lease: str, name: str, offset: int, length: int) -> bytes:
        content = await read(self, lease, name, offset, length)
        lengths.append(len(content))
        return content

    monkeypatch.setattr(Checkpoints, "read", counted)
    return lengths


def test_fetch_continues_at_another_peer_after_a_crash(slow_trio: Trio) -> None:
    """The other peer's replica is fetched once the first peer has sent nothing for long enough."""
    slow_trio.fill(1, 10)
    fetching = slow_trio.nodes[2].begin(slow_trio.hydration.fetch(0, slow_trio.into))
    eventually("some of it has come", lambda: bytes_there(slow_trio) > 1 << 20)

    slow_trio.stop(0)

    assert fetching.result(60)
    assert slow_trio.fetched() == complete(slow_trio.source(1))


@contextmanager
def hangs(node: Served) -> Iterator[None]:
    """Accept connections and answer nothing, as a stopped process does."""
    go_on, stands = threading.Event(), threading.Event()

    async def stand_still() -> None:
        stands.set()
        go_on.wait(60)

    standing = node.begin(stand_still())
    try:
        assert stands.wait(10)
        yield
    finally:
        go_on.set()
        standing.result(10)


def same_replica(trio: Trio) -> None:
    """Give the second node identical files to those of the first one."""
    first, second = (trio.nodes[ordinal].node.replicas.by_partition[0].store for ordinal in (0, 1))
    trio.nodes[0].on_loop(first.flush)
    trio.stop(1)
    shutil.rmtree(second.path)
    trio.nodes[0].on_loop(lambda: first.checkpoint(second.path))
    trio.start(1)


def test_fetch_leaves_a_hanging_peer_for_another_with_the_replica(
    slow_trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fetch moves to another peer soon after the heartbeats have ended, and fetches no identical file again."""
    same_replica(slow_trio)
    peers, lengths = slow_trio.nodes[2].node.peers, count_reads(monkeypatch)
    eventually("the heartbeat reports the other replica", lambda: peers.has_complete_replica(1, 0))
    monkeypatch.setattr(peers, "candidates", lambda partition: [0, 1])
    hydration = slow_trio.new_hydration(stalled_seconds=1000)
    fetching = slow_trio.nodes[2].begin(hydration.fetch(0, slow_trio.into))
    eventually("some of it has come", lambda: bytes_there(slow_trio) > 3 << 20)

    with hangs(slow_trio.nodes[0]):
        assert fetching.result(60)

    assert slow_trio.fetched() == complete(slow_trio.source(1))
    assert sum(lengths) < ROWS * 20_000 + (3 << 20)


def test_fetch_waits_for_a_hanging_peer_with_the_only_replica(
    slow_trio: Trio, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The fetch continues where it was."""
    monkeypatch.setattr(hydration, "_SUSPECTED_SECONDS", 0.0)
    peers, lookups = slow_trio.nodes[2].node.peers, list[int]()
    monkeypatch.setattr(peers, "has_complete_replica", lambda ordinal, partition: lookups.append(ordinal))
    fetching = slow_trio.nodes[2].begin(slow_trio.new_hydration(stalled_seconds=30).fetch(0, slow_trio.into))
    eventually("some of it has come", lambda: bytes_there(slow_trio) > 2 << 20)
    with hangs(slow_trio.nodes[0]):
        eventually("another one was looked for, twice", lambda: len(lookups) > 1)

    assert fetching.result(60)
    assert slow_trio.fetched() == complete(slow_trio.source(0))
    assert "peer-copy" not in capfd.readouterr().err


@pytest.mark.parametrize("heartbeats", [True, False], ids=["but for heartbeats", "altogether"])
def test_fetch_leaves_a_peer_that_never_sends(
    at_the_end: ExitStack, trio: Trio, monkeypatch: pytest.MonkeyPatch, heartbeats: bool
) -> None:
    """The peer was complete at its last heartbeat, and the fetch falls back to the next one."""
    trio.fill(1)
    monkeypatch.setattr(hydration, "_ANSWER_SECONDS", 0.5 if heartbeats else 1000)
    peers = trio.nodes[2].node.peers
    eventually("the heartbeat reports the other replica", lambda: peers.has_complete_replica(1, 0))
    monkeypatch.setattr(peers, "candidates", lambda partition: [0, 1])
    with ExitStack() as stack:
        if heartbeats:
            trio.stop(0)
            port = int(trio.addresses[0].rpartition(":")[2])
            bad = FaultyNode(socket.create_server(("127.0.0.1", port)), "hangs")
            at_the_end.callback(bad.stop)
            eventually(
                "its heartbeats arrive", lambda: 0 in peers.last_heartbeats and 0 not in peers.suspected
            )
        else:
            stack.enter_context(hangs(trio.nodes[0]))

        assert trio.fetch()

    assert trio.fetched() == complete(trio.source(1))


def reading_digests(monkeypatch: pytest.MonkeyPatch, at: Path, before: Callable[[], object]) -> None:
    """`before` each step in which a node reads files of a checkpoint for their digests."""
    read_into = checkpoints._read_into

    def read(digest: Callable[[bytes], None], path: Path, offset: int) -> int:
        if path.is_relative_to(at):
            before()
        return read_into(digest, path, offset)

    monkeypatch.setattr(checkpoints, "_read_into", read)


def test_fetch_leaves_a_peer_whose_checkpoint_makes_no_progress(
    trio: Trio, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The peer answers requests, and its disk hangs."""
    trio.fill(0)
    trio.fill(1)
    go_on = threading.Event()
    reading_digests(monkeypatch, trio.directory / "node-0", lambda: go_on.wait(60))
    monkeypatch.setattr(hydration, "_MAKING_SECONDS", 0.5)
    monkeypatch.setattr(trio.nodes[2].node.peers, "candidates", lambda partition: [0, 1])

    try:
        assert trio.fetch()
    finally:
        go_on.set()

    assert trio.fetched() == complete(trio.source(1))
    assert "does not get beyond 0 bytes" in capfd.readouterr().err


def test_fetch_waits_for_a_slow_checkpoint_that_makes_progress(
    trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fetch waits as long as the peer's progress grows."""
    trio.fill(0)
    monkeypatch.setattr(hydration, "_MAKING_SECONDS", 4.0)
    monkeypatch.setattr(checkpoints, "_DIGEST_BYTES", 64 << 10)
    reading_digests(monkeypatch, trio.directory / "node-0", lambda: time.sleep(0.08))

    assert trio.fetch()

    assert trio.fetched() == complete(trio.source(0))


def test_fetch_continues_after_a_restart_of_its_peer(
    slow_trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease ended with the process, and identical files of the new checkpoint are not fetched again."""
    lengths = count_reads(monkeypatch)
    hydration = slow_trio.new_hydration(stalled_seconds=30)
    fetching = slow_trio.nodes[2].begin(hydration.fetch(0, slow_trio.into))
    eventually("some of it has come", lambda: bytes_there(slow_trio) > 3 << 20)

    slow_trio.stop(0)
    slow_trio.start(0)

    assert fetching.result(60)
    assert slow_trio.fetched() == complete(slow_trio.source(0))
    assert sum(lengths) < ROWS * 20_000 + (3 << 20)


def test_fetch_requests_a_new_lease_when_one_ends(slow_trio: Trio, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files are identical and continue where they were."""
    lengths = count_reads(monkeypatch)
    fetching = slow_trio.nodes[2].begin(slow_trio.hydration.fetch(0, slow_trio.into))
    eventually("some of it has come", lambda: bytes_there(slow_trio) > 2 << 20)

    lease = slow_trio.leases(0)[0].name
    slow_trio.nodes[0].begin(slow_trio.nodes[0].node.checkpoints.release(lease)).result(10)

    assert fetching.result(60)
    assert slow_trio.fetched() == complete(slow_trio.source(0))
    assert sum(lengths) < ROWS * 20_000 + (2 << 20)


def test_cancelled_fetch_continues_after_a_restart(slow_trio: Trio, monkeypatch: pytest.MonkeyPatch) -> None:
    """No openable store is left, and the received bytes are not fetched again under the same lease."""
    fetching = slow_trio.nodes[2].begin(slow_trio.hydration.fetch(0, slow_trio.into))
    eventually("some of it has come", lambda: bytes_there(slow_trio) > 2 << 20)
    lease = slow_trio.leases(0)

    fetching.cancel()
    eventually("it has ended", lambda: 0 not in slow_trio.hydration.progress)
    assert not slow_trio.into.exists()
    there, lengths = bytes_there(slow_trio), count_reads(monkeypatch)
    assert slow_trio.leases(0) == lease
    new_leases = change_checkpoints(monkeypatch, slow_trio.nodes[0], lambda _, manifest: manifest)

    assert slow_trio.fetch(records_min=1)
    assert slow_trio.fetched() == complete(slow_trio.source(0))
    assert sum(lengths) < ROWS * 20_000 * 1.02 - there + (1 << 16)
    assert new_leases == []


def test_staged_store_that_was_opened_before_a_crash_is_discarded(trio: Trio) -> None:
    """A store that was opened and not renamed into place is fetched from the beginning."""
    trio.fill(0)
    left = trio.into.with_name("p0000.incoming") / "files"
    left.mkdir(parents=True)
    store = Store.open(left, IDENTITY, SharedMemory(8, 8))
    store.apply([(b"wrong", b"row")], ReplicaState(1, True, 1))
    store.close()

    assert trio.fetch()

    assert trio.fetched() == complete(trio.source(0))


@pytest.mark.parametrize("free", [0, 1 << 20])
def test_fetch_does_not_begin_without_disk_space(
    trio: Trio, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], free: int
) -> None:
    """A disk that is too small is detected before it is full."""
    trio.fill(0)
    usage = shutil.disk_usage(trio.directory)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=free))

    assert not trio.fetch()

    assert leftovers_are_gone(trio)
    assert f"{free} are free" in capfd.readouterr().err


def test_full_disk_ends_the_fetch(
    trio: Trio, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The received files are deleted, so that there is space again."""
    trio.fill(0)
    append = StagedFile.append

    def full(self: StagedFile, block: bytes) -> None:
        if self.size > 2 << 20:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        append(self, block)

    monkeypatch.setattr(StagedFile, "append", full)

    assert not trio.fetch()

    assert leftovers_are_gone(trio)
    assert "No space left on device" in capfd.readouterr().err
    eventually("the lease is given back", lambda: trio.leases(0) == [])


def test_unreadable_plan_starts_the_fetch_over(trio: Trio) -> None:
    """Unknown files in the staging directory never become part of a store."""
    trio.fill(0)
    left = trio.into.with_name("p0000.incoming")
    (left / "files").mkdir(parents=True)
    (left / "files" / "CURRENT").write_bytes(b"MANIFEST-999999\n")
    (left / "plan.json").write_text("{")

    assert StagingDirectory(trio.into).interrupted_fetch() is None
    assert trio.fetch()
    assert trio.fetched() == complete(trio.source(0))
