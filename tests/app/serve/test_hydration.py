"""A copy from a live node: what arrives is the source, or nothing does."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from queryable_app.checkpoint_files import BeingMade, Fetch, Manifest
from queryable_app.disk_format import CopyState
from queryable_app.errors import Failure
from queryable_app.serve import checkpoints, hydration
from queryable_app.serve.checkpoints import Checkpoints
from queryable_app.serve.incoming import Incoming, IncomingFile
from queryable_app.serve.store import SharedMemory, Store
from tests.support.bad_node import BadNode
from tests.support.served import Served, eventually
from tests.support.trio import IDENTITY, LARGE, ROWS, Fetched, Trio, complete


@pytest.fixture
def at_the_end() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def trio(tmp_path: Path) -> Iterator[Trio]:
    with Trio(tmp_path) as started:
        yield started


@pytest.fixture(scope="module")
def both_filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trio]:
    """Two complete copies of other rows each, so that one sees whose was taken. Nobody writes to them."""
    with Trio(tmp_path_factory.mktemp("both")) as started:
        started.fill(0)
        started.fill(1)
        yield started


@pytest.fixture
def slow_trio(tmp_path: Path) -> Iterator[Trio]:
    """A copy takes two to three seconds, so that there is a middle of it."""
    with Trio(tmp_path, mb_per_second=2) as started:
        started.fill(0)
        yield started


def nothing_is_left(trio: Trio) -> bool:
    return not trio.into.exists() and not trio.into.with_name("p0000.incoming").exists()


def bytes_there(trio: Trio) -> int:
    files = trio.into.with_name("p0000.incoming").glob("files/*")
    return sum(file.stat().st_size for file in files)


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of all ranges that peers give from now on."""
    read, lengths = Checkpoints.read, []

    async def counted(self: Checkpoints, lease: str, name: str, offset: int, length: int) -> bytes:
        content = await read(self, lease, name, offset, length)
        lengths.append(len(content))
        return content

    monkeypatch.setattr(Checkpoints, "read", counted)
    return lengths


Change = Callable[[Path, Manifest], Manifest]


def change_what_is_given(monkeypatch: pytest.MonkeyPatch, node: Served, change: Change) -> list[str]:
    """`change` gets the directory of each checkpoint that the node makes, and its manifest. Returns the leases of all that
    it will have made."""
    checkpoints = node.node.checkpoints
    create, manifest = checkpoints.create, checkpoints.manifest
    directory = Path(node.node.settings.data_dir, "tests.users.r1", "checkpoints")

    def noted(partition: int, records_min: int) -> BeingMade:
        leases.append(create(partition, records_min).lease)
        return BeingMade(leases[-1], 0)

    async def changed(lease: str) -> Manifest | BeingMade:
        made = await manifest(lease)
        return made if isinstance(made, BeingMade) else change(directory / lease, made)

    leases: list[str] = []
    monkeypatch.setattr(checkpoints, "create", noted)
    monkeypatch.setattr(checkpoints, "manifest", changed)
    return leases


def largest(path: Path) -> Path:
    return max(path.iterdir(), key=lambda file: file.stat().st_size)


def rewritten(file: Path, content: bytes) -> None:
    """Another file of this name: the store has its own hard link to the old one."""
    file.unlink()
    file.write_bytes(content)


def test_the_copy_is_the_source(trio: Trio) -> None:
    """Every row and all of the state, but for being complete, which it has to become by itself."""
    trio.fill(0)

    assert trio.fetch()

    assert trio.fetched() == complete(trio.source(0))
    assert trio.leases(0) == []
    assert not trio.into.with_name("p0000.incoming").exists()


def test_the_copy_is_a_moment_of_a_source_that_is_written_to(slow_trio: Trio) -> None:
    """Rows that are written while it is made are in it up to its position, and none beyond."""
    written: list[tuple[bytes, int]] = []
    done = threading.Event()

    def write() -> None:
        while not done.is_set():
            key = b"written-%06d" % len(written)
            written.append((key, slow_trio.nodes[0].put(key, os.urandom(500), partition=0)[1]))

    writer = threading.Thread(target=write)
    writer.start()
    eventually("some rows are written before", lambda: len(written) > 50)
    try:
        assert slow_trio.fetch()
    finally:
        done.set()
        writer.join()

    rows, state = slow_trio.fetched()
    source = slow_trio.source(0).rows
    expected = {*LARGE, *(key for key, offset in written if offset < state.position)}
    assert rows == {key: source[key] for key in expected}
    assert (state.position, state.rows) == (len(rows), len(rows))
    assert ROWS + 50 < state.position < len(source)


def test_a_small_copy_is_left_to_the_stream(trio: Trio) -> None:
    """What streams at once is not worth a checkpoint, and none is made."""
    trio.fill(0, 99)
    trio.fill(1, 99)

    assert not trio.fetch(records_min=100)

    assert nothing_is_left(trio)
    assert trio.leases(0) == []


def test_without_a_complete_copy_there_is_nothing_to_fetch(trio: Trio) -> None:
    """Peers that build their own copies give nothing."""
    assert not trio.fetch()

    assert nothing_is_left(trio)


def test_what_is_there_is_left_alone(trio: Trio) -> None:
    """A store that stands in the place already goes on from where it is."""
    trio.fill(0)
    Store.open(trio.into, IDENTITY, SharedMemory(8, 8)).close()

    assert not trio.fetch()

    assert trio.fetched() == Fetched({}, CopyState())


def test_the_next_peer_is_asked_when_one_is_not_complete(trio: Trio) -> None:
    """The first of the placement has wiped its copy, the second one has it."""
    trio.fill(1)

    assert trio.fetch()

    assert trio.fetched() == complete(trio.source(1))


def test_the_next_peer_is_asked_when_one_is_away(trio: Trio) -> None:
    """Nobody answers at the first one's address."""
    trio.fill(1)
    trio.stop(0)

    assert trio.fetch()

    assert trio.fetched() == complete(trio.source(1))


def flipped(path: Path, manifest: Manifest) -> Manifest:
    file = largest(path)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    rewritten(file, bytes(content))
    return manifest


def truncated(path: Path, manifest: Manifest) -> Manifest:
    file = largest(path)
    rewritten(file, file.read_bytes()[:-1])
    return manifest


def gone(path: Path, manifest: Manifest) -> Manifest:
    largest(path).unlink()
    return manifest


def all_gone(path: Path, manifest: Manifest) -> Manifest:
    shutil.rmtree(path)
    return manifest


def not_named(path: Path, manifest: Manifest) -> Manifest:
    left_out = largest(path).name
    return replace(manifest, files=tuple(file for file in manifest.files if file.name != left_out))


def meta_not_named(_: Path, manifest: Manifest) -> Manifest:
    return replace(manifest, files=tuple(f for f in manifest.files if not f.name.startswith("MANIFEST")))


def called(name: str) -> Change:
    def change(_: Path, manifest: Manifest) -> Manifest:
        first, *others = manifest.files
        return replace(manifest, files=(replace(first, name=name), *others))

    return change


def said(**fields: Any) -> Change:
    return lambda _, manifest: replace(manifest, **fields)


WRONG: dict[str, Change] = {
    "a flipped byte": flipped,
    "a truncated file": truncated,
    "a file that is gone": gone,
    "all files gone": all_gone,
    "rows that are not named": not_named,
    "a MANIFEST that is not named": meta_not_named,
    "a name that leads out": called("../../p0001"),
    "an absolute name": called("/tmp/x"),
    "another application": said(application_id="tests.users.r2"),
    "another partition": said(partition=1),
    "another format": said(format=999),
    "another position": said(position=ROWS + 1),
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG.keys())
def test_what_is_not_as_it_was_said_is_thrown_away(
    both_filled: Trio,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    change: Change,
) -> None:
    """Nothing of it is left, there is an event, and the next peer's copy is taken."""
    both_filled.into = tmp_path / "p0000"
    leases = change_what_is_given(monkeypatch, both_filled.nodes[0], change)
    monkeypatch.setattr(both_filled.nodes[2].node.peers, "candidates", lambda partition: [0, 1])

    assert both_filled.fetch()

    assert both_filled.fetched() == complete(both_filled.source(1))
    assert [path.name for path in tmp_path.iterdir()] == ["p0000"]
    events = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    given_up = {"peer-copy-thrown-away", "peer-copy-given-up"}
    assert [event["peer"] for event in events if event["event"] in given_up] == both_filled.addresses[:1]
    assert leases
    assert len(both_filled.leases(0)) <= 1
    for lease in leases:  # that nobody could give back whose manifest made no sense
        with suppress(Failure):
            both_filled.nodes[0].begin(both_filled.nodes[0].node.checkpoints.release(lease)).result(10)


def test_a_corrupt_copy_is_worse_than_none(trio: Trio, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody else has one the topic builds the copy, from nothing."""
    trio.fill(0)
    change_what_is_given(monkeypatch, trio.nodes[0], flipped)

    assert not trio.fetch()

    assert nothing_is_left(trio)


def test_a_copy_that_is_damaged_at_its_peer_is_not_taken(
    trio: Trio, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The peer does not know, and its digests are of the damaged bytes: the rows' own checksums tell."""
    trio.fill(0)
    trio.fill(1)
    trio.damage(0)
    monkeypatch.setattr(trio.nodes[2].node.peers, "candidates", lambda partition: [0, 1])

    assert trio.fetch()

    assert trio.fetched() == complete(trio.source(1))
    events = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    thrown_away = [event for event in events if event["event"] == "peer-copy-thrown-away"]
    assert [event["peer"] for event in thrown_away] == trio.addresses[:1]
    assert "Corruption" in thrown_away[0]["reason"]
    eventually("its lease is given back", lambda: trio.leases(0) == [])


def test_a_copy_that_is_known_to_be_damaged_is_not_given(trio: Trio) -> None:
    """Once a read has come to the damage nothing of it leaves the node, and other nodes hear that it is not whole."""
    trio.fill(0)
    trio.damage(0)
    copy, heard = trio.nodes[0].node.copies.by_partition[0], trio.nodes[2].node.peers.heard
    eventually("it is heard to be whole", lambda: heard[0].copies[0].complete)
    with pytest.raises(Failure, match="cannot be read"):
        trio.nodes[0].on_loop(lambda: list(copy.store.rows()))

    assert not trio.fetch()

    eventually("it is heard not to be", lambda: not heard[0].copies[0].complete)
    assert trio.leases(0) == []
    assert copy.complete


def test_another_ones_rows_are_thrown_away(
    trio: Trio, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A peer that gives another partition's store for the one that it names is found out before it is served."""
    trio.fill(0)
    hydration = trio.new_hydration()
    checkpoints = trio.nodes[0].node.checkpoints
    create = checkpoints.create
    monkeypatch.setattr(checkpoints, "create", lambda partition, records_min: create(0, records_min))
    change_what_is_given(monkeypatch, trio.nodes[0], said(partition=1))
    monkeypatch.setattr(trio.nodes[2].node.peers, "candidates", lambda partition: [0])

    assert not trio.nodes[2].begin(hydration.fetch(1, trio.into)).result(60)

    assert nothing_is_left(trio)
    assert "holds partition 0" in capfd.readouterr().err


def test_a_peer_that_dies_in_the_middle_is_replaced(slow_trio: Trio) -> None:
    """The other peer's copy is taken once the first one has been silent for long enough."""
    slow_trio.fill(1, 10)
    fetching = slow_trio.nodes[2].begin(slow_trio.hydration.fetch(0, slow_trio.into))
    eventually("some of it has come", lambda: bytes_there(slow_trio) > 1 << 20)

    slow_trio.stop(0)

    assert fetching.result(60)
    assert slow_trio.fetched() == complete(slow_trio.source(1))


@contextmanager
def hangs(node: Served) -> Iterator[None]:
    """As if it was stopped: its connections stay, and nobody answers."""
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


def same_copy(trio: Trio) -> None:
    """The second node has the very files of the first one."""
    first, second = (trio.nodes[ordinal].node.copies.by_partition[0].store for ordinal in (0, 1))
    trio.nodes[0].on_loop(first.flush)
    trio.stop(1)
    shutil.rmtree(second.path)
    trio.nodes[0].on_loop(lambda: first.checkpoint(second.path))
    trio.start(1)


def test_a_peer_that_hangs_in_the_middle_is_left_for_another_that_has_the_copy(
    slow_trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Soon after its heartbeats have ended; what the other one has as well is not copied again."""
    same_copy(slow_trio)
    peers, lengths = slow_trio.nodes[2].node.peers, count_reads(monkeypatch)
    eventually("the other is heard to have it", lambda: peers.has_whole(1, 0))
    monkeypatch.setattr(peers, "candidates", lambda partition: [0, 1])
    hydration = slow_trio.new_hydration(stalled_seconds=1000)
    fetching = slow_trio.nodes[2].begin(hydration.fetch(0, slow_trio.into))
    eventually("some of it has come", lambda: bytes_there(slow_trio) > 3 << 20)

    with hangs(slow_trio.nodes[0]):
        assert fetching.result(60)

    assert slow_trio.fetched() == complete(slow_trio.source(1))
    assert sum(lengths) < ROWS * 20_000 + (3 << 20)


def test_a_peer_that_hangs_and_has_the_only_copy_is_waited_for(
    slow_trio: Trio, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It goes on where it was."""
    monkeypatch.setattr(hydration, "_GONE_SECONDS", 0.0)
    peers, asked_for = slow_trio.nodes[2].node.peers, list[int]()
    monkeypatch.setattr(peers, "has_whole", lambda ordinal, partition: asked_for.append(ordinal))
    fetching = slow_trio.nodes[2].begin(slow_trio.new_hydration(stalled_seconds=30).fetch(0, slow_trio.into))
    eventually("some of it has come", lambda: bytes_there(slow_trio) > 2 << 20)
    with hangs(slow_trio.nodes[0]):
        eventually("another one was looked for, twice", lambda: len(asked_for) > 1)

    assert fetching.result(60)
    assert slow_trio.fetched() == complete(slow_trio.source(0))
    assert "peer-copy" not in capfd.readouterr().err


@pytest.mark.parametrize("heartbeats", [True, False], ids=["but for heartbeats", "altogether"])
def test_a_peer_that_hangs_from_the_beginning_is_given_up(
    at_the_end: ExitStack, trio: Trio, monkeypatch: pytest.MonkeyPatch, heartbeats: bool
) -> None:
    """Although it had the copy when it was last heard: the next one is asked."""
    trio.fill(1)
    monkeypatch.setattr(hydration, "_ANSWER_SECONDS", 0.5 if heartbeats else 1000)
    peers = trio.nodes[2].node.peers
    eventually("the other is heard to have it", lambda: peers.has_whole(1, 0))
    monkeypatch.setattr(peers, "candidates", lambda partition: [0, 1])
    with ExitStack() as stack:
        if heartbeats:
            trio.stop(0)
            port = int(trio.addresses[0].rpartition(":")[2])
            bad = BadNode(socket.create_server(("127.0.0.1", port)), "silent")
            at_the_end.callback(bad.stop)
            eventually("it is heard", lambda: 0 in peers.heard and 0 not in peers.suspects)
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


def test_a_peer_that_gets_nowhere_with_its_checkpoint_is_given_up(
    trio: Trio, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It answers whatever it is asked, and its disk does not."""
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


def test_a_peer_that_takes_long_for_its_checkpoint_is_waited_for(
    trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as it gets on with it."""
    trio.fill(0)
    monkeypatch.setattr(hydration, "_MAKING_SECONDS", 2.0)
    monkeypatch.setattr(checkpoints, "_DIGEST_BYTES", 64 << 10)
    reading_digests(monkeypatch, trio.directory / "node-0", lambda: time.sleep(0.04))

    assert trio.fetch()

    assert trio.fetched() == complete(trio.source(0))


def test_a_peer_that_comes_back_goes_on(slow_trio: Trio, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lease ended with its process; what is the same in its new checkpoint is not copied again."""
    lengths = count_reads(monkeypatch)
    hydration = slow_trio.new_hydration(stalled_seconds=30)
    fetching = slow_trio.nodes[2].begin(hydration.fetch(0, slow_trio.into))
    eventually("some of it has come", lambda: bytes_there(slow_trio) > 3 << 20)

    slow_trio.stop(0)
    slow_trio.start(0)

    assert fetching.result(60)
    assert slow_trio.fetched() == complete(slow_trio.source(0))
    assert sum(lengths) < ROWS * 20_000 + (3 << 20)


def test_a_lease_that_ends_in_the_middle_is_asked_for_anew(
    slow_trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files are the same, and go on where they were."""
    lengths = count_reads(monkeypatch)
    fetching = slow_trio.nodes[2].begin(slow_trio.hydration.fetch(0, slow_trio.into))
    eventually("some of it has come", lambda: bytes_there(slow_trio) > 2 << 20)

    lease = slow_trio.leases(0)[0].name
    slow_trio.nodes[0].begin(slow_trio.nodes[0].node.checkpoints.release(lease)).result(10)

    assert fetching.result(60)
    assert slow_trio.fetched() == complete(slow_trio.source(0))
    assert sum(lengths) < ROWS * 20_000 + (2 << 20)


def test_a_cancelled_copy_goes_on_after_a_restart(slow_trio: Trio, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that could be opened is left, and what had come is not fetched again under the lease of before."""
    fetching = slow_trio.nodes[2].begin(slow_trio.hydration.fetch(0, slow_trio.into))
    eventually("some of it has come", lambda: bytes_there(slow_trio) > 2 << 20)
    lease = slow_trio.leases(0)

    fetching.cancel()
    eventually("it has ended", lambda: 0 not in slow_trio.hydration.progress)
    assert not slow_trio.into.exists()
    there, lengths = bytes_there(slow_trio), count_reads(monkeypatch)
    assert slow_trio.leases(0) == lease
    new_leases = change_what_is_given(monkeypatch, slow_trio.nodes[0], lambda _, manifest: manifest)

    assert slow_trio.fetch(records_min=1)
    assert slow_trio.fetched() == complete(slow_trio.source(0))
    assert sum(lengths) < ROWS * 20_000 * 1.02 - there + (1 << 16)
    assert new_leases == []


def test_what_a_crash_left_after_it_was_opened_is_not_believed(trio: Trio) -> None:
    """A store that was opened, and not put into its place, is begun anew."""
    trio.fill(0)
    left = trio.into.with_name("p0000.incoming") / "files"
    left.mkdir(parents=True)
    store = Store.open(left, IDENTITY, SharedMemory(8, 8))
    store.apply([(b"wrong", b"row")], CopyState(1, True, 1))
    store.close()

    assert trio.fetch()

    assert trio.fetched() == complete(trio.source(0))


@pytest.mark.parametrize("free", [0, 1 << 20])
def test_without_room_nothing_is_begun(
    trio: Trio, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], free: int
) -> None:
    """A disk that is too small for the copy is found out before it is full."""
    trio.fill(0)
    usage = shutil.disk_usage(trio.directory)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=free))

    assert not trio.fetch()

    assert nothing_is_left(trio)
    assert f"{free} are free" in capfd.readouterr().err


def test_a_disk_that_becomes_full_ends_the_copy(
    trio: Trio, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """What had come is taken away, so that there is room again."""
    trio.fill(0)
    append = IncomingFile.append

    def full(self: IncomingFile, block: bytes) -> None:
        if self.size > 2 << 20:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        append(self, block)

    monkeypatch.setattr(IncomingFile, "append", full)

    assert not trio.fetch()

    assert nothing_is_left(trio)
    assert "No space left on device" in capfd.readouterr().err
    eventually("the lease is given back", lambda: trio.leases(0) == [])


def test_how_far_it_is_can_be_seen(slow_trio: Trio) -> None:
    """While a copy comes in its bytes grow towards the whole, with a rate; afterwards it is not listed."""
    seen: list[Fetch] = []
    fetching = slow_trio.nodes[2].begin(slow_trio.hydration.fetch(0, slow_trio.into))
    while not fetching.done():
        seen += slow_trio.hydration.progress.values()
        time.sleep(0.05)  # how often we look

    done = [fetch.bytes_done for fetch in seen]
    assert done == sorted(done)
    assert len(set(done)) > 3
    assert seen[-1].bytes_done <= seen[-1].bytes_total
    assert {(fetch.partition, fetch.peer) for fetch in seen} == {(0, slow_trio.addresses[0])}
    assert 0 < seen[-1].bytes_per_second < 4 << 20
    assert slow_trio.hydration.progress == {}


def test_reads_are_answered_while_a_copy_is_given(slow_trio: Trio) -> None:
    """The node that gives goes on answering, and its copy is what it was."""
    fetching = slow_trio.nodes[2].begin(slow_trio.hydration.fetch(0, slow_trio.into))
    with slow_trio.nodes[0].client() as client:
        while not fetching.done():
            answer = client.get(
                "/v1/keys/00000007?consistency=any", headers={"accept": "application/octet-stream"}
            )
            assert (answer.status_code, len(answer.content)) == (200, 20_000)

    assert fetching.result()


def test_an_interrupted_plan_that_is_unreadable_is_begun_anew(trio: Trio) -> None:
    """Whatever lies in the directory for incoming files, it is never taken for a part of the copy."""
    trio.fill(0)
    left = trio.into.with_name("p0000.incoming")
    (left / "files").mkdir(parents=True)
    (left / "files" / "CURRENT").write_bytes(b"MANIFEST-999999\n")
    (left / "plan.json").write_text("{")

    assert Incoming(trio.into).kept() is None
    assert trio.fetch()
    assert trio.fetched() == complete(trio.source(0))


def test_two_copies_come_at_once_and_others_wait(trio: Trio) -> None:
    """A node that builds many copies does not ask for all of them at one time."""
    trio.fill(0)

    async def all_of_them() -> list[bool]:
        places = [trio.into.with_name(f"p000{n}") for n in range(4)]
        return list(await asyncio.gather(*(trio.hydration.fetch(0, place) for place in places)))

    assert trio.nodes[2].begin(all_of_them()).result(60) == [True] * 4
