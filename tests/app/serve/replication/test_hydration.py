"""Test that a fetch from a live peer gives a store equal to its source, or none."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from queryable_app.errors import Failure
from queryable_app.serve.store.shared_memory import SharedMemory
from queryable_app.serve.store.store import Store
from queryable_app.wire.checkpoint_files import FetchProgress, Manifest
from queryable_app.wire.disk_format import ReplicaState
from tests.support.trio import (
    IDENTITY,
    LARGE,
    ROWS,
    Change,
    StoreContent,
    Trio,
    change_checkpoints,
    complete,
    leftovers_are_gone,
)
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def both_filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trio]:
    """Two complete replicas with different rows, so that the rows name the checkpoint source. No producer writes."""
    with Trio(tmp_path_factory.mktemp("both")) as started:
        started.fill(0)
        started.fill(1)
        yield started


def largest(path: Path) -> Path:
    return max(path.iterdir(), key=lambda file: file.stat().st_size)


def rewritten(file: Path, content: bytes) -> None:
    """Another file of this name: the store has its own hard link to the old one."""
    file.unlink()
    file.write_bytes(content)


def test_fetched_store_equals_its_source(trio: Trio) -> None:
    """A fetched store has every row and the whole state of its source, except that it is not complete yet."""
    trio.fill(0)

    assert trio.fetch()

    assert trio.fetched() == complete(trio.source(0))
    assert trio.leases(0) == []
    assert not trio.into.with_name("p0000.incoming").exists()


def test_fetched_store_is_a_snapshot_of_a_changing_source(slow_trio: Trio) -> None:
    """A store fetched during writes has the rows up to its position, and none beyond."""
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


def test_small_replica_is_not_fetched(trio: Trio) -> None:
    """The topic streams it at once, so no checkpoint is made."""
    trio.fill(0, 99)
    trio.fill(1, 99)

    assert not trio.fetch(records_min=100)

    assert leftovers_are_gone(trio)
    assert trio.leases(0) == []


def test_nothing_is_fetched_without_a_complete_replica(trio: Trio) -> None:
    """Peers that are hydrating serve no checkpoint."""
    assert not trio.fetch()

    assert leftovers_are_gone(trio)


def test_existing_store_is_not_replaced(trio: Trio) -> None:
    """A store at the destination continues from its position."""
    trio.fill(0)
    Store.open(trio.into, IDENTITY, SharedMemory(8, 8)).close()

    assert not trio.fetch()

    assert trio.fetched() == StoreContent({}, ReplicaState())


def test_fetch_falls_back_from_an_incomplete_peer(trio: Trio) -> None:
    """The first peer of the placement has wiped its replica, and the second one has it."""
    trio.fill(1)

    assert trio.fetch()

    assert trio.fetched() == complete(trio.source(1))


def test_fetch_falls_back_from_an_unreachable_peer(trio: Trio) -> None:
    """Nothing listens at the first peer's address."""
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


def without_file(path: Path, manifest: Manifest) -> Manifest:
    largest(path).unlink()
    return manifest


def without_files(path: Path, manifest: Manifest) -> Manifest:
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


def with_fields(**fields: Any) -> Change:
    return lambda _, manifest: replace(manifest, **fields)


WRONG: dict[str, Change] = {
    "a flipped byte": flipped,
    "a truncated file": truncated,
    "a missing file": without_file,
    "no files": without_files,
    "rows that are not named": not_named,
    "a MANIFEST that is not named": meta_not_named,
    "a name that leads out": called("../../p0001"),
    "an absolute name": called("/tmp/x"),
    "another application": with_fields(application_id="tests.users.r2"),
    "another partition": with_fields(partition=1),
    "another format": with_fields(format=999),
    "another position": with_fields(position=ROWS + 1),
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG.keys())
def test_bytes_that_do_not_match_the_manifest_are_discarded(
    both_filled: Trio,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    change: Change,
) -> None:
    """None of them stays, an event has the reason, and the next peer's replica is fetched."""
    both_filled.into = tmp_path / "p0000"
    leases = change_checkpoints(monkeypatch, both_filled.nodes[0], change)
    monkeypatch.setattr(both_filled.nodes[2].node.peers, "candidates", lambda partition: [0, 1])

    assert both_filled.fetch()

    assert both_filled.fetched() == complete(both_filled.source(1))
    assert [path.name for path in tmp_path.iterdir()] == ["p0000"]
    events = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    abandoned = {"peer-copy-thrown-away", "peer-copy-given-up"}
    assert [event["peer"] for event in events if event["event"] in abandoned] == both_filled.addresses[:1]
    assert leases
    assert len(both_filled.leases(0)) <= 1
    for lease in leases:  # a malformed manifest leaves its lease unreleased
        with suppress(Failure):
            both_filled.nodes[0].begin(both_filled.nodes[0].node.checkpoints.release(lease)).result(10)


def test_corrupt_checkpoint_is_worse_than_none(trio: Trio, monkeypatch: pytest.MonkeyPatch) -> None:
    """If no other peer has the replica, the topic hydrates it from nothing."""
    trio.fill(0)
    change_checkpoints(monkeypatch, trio.nodes[0], flipped)

    assert not trio.fetch()

    assert leftovers_are_gone(trio)


def test_checkpoint_of_a_damaged_replica_is_not_used(
    trio: Trio, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The peer has not found the damage and digests the damaged bytes, so the rows' own checksums reveal it."""
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


def test_damaged_replica_serves_no_checkpoint(trio: Trio) -> None:
    """Once a read has found the damage, the node serves no checkpoint and reports to its peers that it is
    not complete."""
    trio.fill(0)
    trio.damage(0)
    replica, last_heartbeats = (
        trio.nodes[0].node.replicas.by_partition[0],
        trio.nodes[2].node.peers.last_heartbeats,
    )
    eventually("the heartbeat reports a complete replica", lambda: last_heartbeats[0].replicas[0].complete)
    with pytest.raises(Failure, match="cannot be read"):
        trio.nodes[0].on_loop(lambda: list(replica.store.rows()))

    assert not trio.fetch()

    eventually(
        "the heartbeat reports an incomplete replica", lambda: not last_heartbeats[0].replicas[0].complete
    )
    assert trio.leases(0) == []
    assert replica.complete


def test_store_of_another_partition_is_discarded(
    trio: Trio, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A peer that sends another partition's store is detected before the store serves reads."""
    trio.fill(0)
    hydration = trio.new_hydration()
    checkpoints = trio.nodes[0].node.checkpoints
    create = checkpoints.create
    monkeypatch.setattr(checkpoints, "create", lambda partition, records_min: create(0, records_min))
    change_checkpoints(monkeypatch, trio.nodes[0], with_fields(partition=1))
    monkeypatch.setattr(trio.nodes[2].node.peers, "candidates", lambda partition: [0])

    assert not trio.nodes[2].begin(hydration.fetch(1, trio.into)).result(60)

    assert leftovers_are_gone(trio)
    assert "holds partition 0" in capfd.readouterr().err


def test_progress_of_a_fetch_is_visible(slow_trio: Trio) -> None:
    """During a fetch its bytes grow towards the total, with a rate. Afterwards it is not listed."""
    seen: list[FetchProgress] = []
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


def test_checkpoint_source_answers_reads(slow_trio: Trio) -> None:
    """The peer answers reads during the fetch."""
    fetching = slow_trio.nodes[2].begin(slow_trio.hydration.fetch(0, slow_trio.into))
    with slow_trio.nodes[0].client() as client:
        while not fetching.done():
            answer = client.get(
                # The disk decides for how long RocksDB holds the interpreter to make the checkpoint and to open it.
                "/v1/keys/00000007?consistency=any&deadline-ms=30000",
                headers={"accept": "application/octet-stream"},
            )
            assert (answer.status_code, len(answer.content)) == (200, 20_000)

    assert fetching.result()


def test_two_fetches_run_at_once(trio: Trio) -> None:
    """A node that hydrates many replicas does not fetch all of them at once."""
    trio.fill(0)

    async def all_of_them() -> list[bool]:
        places = [trio.into.with_name(f"p000{n}") for n in range(4)]
        return list(await asyncio.gather(*(trio.hydration.fetch(0, place) for place in places)))

    assert trio.nodes[2].begin(all_of_them()).result(60) == [True] * 4
