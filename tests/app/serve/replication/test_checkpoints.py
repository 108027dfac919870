"""Test the checkpoints that a node serves to its peers."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from queryable_app.serve.replication import checkpoints
from queryable_app.serve.replication.checkpoints import Checkpoints
from queryable_app.serve.store.shared_memory import SharedMemory
from queryable_app.serve.store.store import Store
from queryable_app.serve.store.store_errors import StoreError
from queryable_app.wire.checkpoint_files import CheckpointInProgress, Manifest
from queryable_app.wire.disk_format import Identity
from tests.support.served import Served, served
from tests.support.waiting import eventually

TOKEN = {"qt-node": "between-nodes"}
PATH = "/internal/v1/checkpoints"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Served]:
    """One partition with 500 rows."""
    (tmp_path / "token").write_text(TOKEN["qt-node"])
    settings = {"internal_token_path": str(tmp_path / "token")}
    with served(tmp_path / "node", partitions=1, settings=settings) as running:
        running.fill(500)
        yield running


def create(node: Served, partition: int = 0, records_min: int = 1) -> httpx.Response:
    """Create a checkpoint, and return the final response."""
    with node.client(headers=TOKEN) as client:
        answer = client.post(PATH, json={"partition": partition, "recordsMin": records_min})
        while answer.status_code == 202:
            answer = client.get(f"{PATH}/{answer.json()['lease']}")
        return answer


def manifest_of(answer: httpx.Response) -> Manifest:
    assert answer.status_code == 200, answer.text
    return Manifest.from_json(answer.content)


async def made(checkpoints: Checkpoints) -> Manifest:
    lease = checkpoints.create(0, 1).lease
    while isinstance(manifest := await checkpoints.manifest(lease), CheckpointInProgress):
        pass
    return manifest


def directory(node: Served) -> Path:
    return Path(node.node.settings.data_dir, "tests.users.r1", "checkpoints")


def test_checkpoint_is_a_store_at_the_position_of_its_manifest(node: Served, tmp_path: Path) -> None:
    """The files of a checkpoint, fetched by ranges, are the rows and the state of its moment, without later writes."""
    manifest = manifest_of(create(node))
    expected = node.on_loop(lambda: list(node.node.replicas.by_partition[0].store.rows()))
    node.put(b"later", b"1")
    (tmp_path / "copy").mkdir()
    with node.client(headers=TOKEN) as client:
        for file in manifest.files:
            content = b""
            while len(content) < file.size:
                params = {"offset": len(content), "length": 10_000}
                content += client.get(f"{PATH}/{manifest.lease}/files/{file.name}", params=params).content
            assert hashlib.sha256(content).hexdigest() == file.digest
            (tmp_path / "copy" / file.name).write_bytes(content)

    store = Store.open(tmp_path / "copy", Identity("tests.users.r1", "users", 0), SharedMemory(8, 8))

    assert (list(store.rows()), store.state.position, manifest.position) == (expected, 500, 500)
    store.close()


def test_checkpoint_during_writes_matches_its_position(node: Served, tmp_path: Path) -> None:
    """A checkpoint between two writes has the rows of exactly the offsets below its position, in every
    family."""
    for number in range(20):
        creating = node.begin(made(node.node.checkpoints))
        offsets: list[int] = []
        while not creating.done():
            offsets.append(node.put(b"row-%d-%d" % (number, len(offsets)), b"1", partition=0)[1])
        manifest = creating.result()
        path = directory(node) / manifest.lease
        store = Store.open(path, Identity("tests.users.r1", "users", 0), SharedMemory(8, 8))
        written = [offset for offset in offsets if store.get(b"row-%d-%d" % (number, offset - offsets[0]))]

        assert store.state.position == manifest.position
        assert written == [offset for offset in offsets if offset < manifest.position]
        store.close()
        node.begin(node.node.checkpoints.release(manifest.lease)).result(10)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", PATH),
        ("GET", f"{PATH}/{'0' * 16}"),
        ("GET", f"{PATH}/{'0' * 16}/files/CURRENT"),
        ("DELETE", f"{PATH}/{'0' * 16}"),
    ],
)
def test_checkpoints_require_the_node_token(node: Served, method: str, path: str) -> None:
    """Without the token of the topic's nodes every route is refused."""
    with node.client() as client:
        answers = [client.request(method, path, headers=h).status_code for h in ({}, {"qt-node": "wrong"})]

    assert answers == [401, 403]


def test_checkpoint_of_an_incomplete_replica_is_refused(node: Served) -> None:
    """So is one of a failed, missing or too small replica."""
    replica = node.node.replicas.by_partition[0]

    too_small = create(node, records_min=501)
    elsewhere = create(node, partition=7)
    node.on_loop(lambda: replica.store.apply((), replica.state._replace(complete=False)))
    incomplete = create(node)
    node.on_loop(lambda: replica.store.apply((), replica.state._replace(complete=True)))
    node.on_loop(lambda: replica.fail("a broken disk"))
    failed = create(node)

    for answer in (too_small, elsewhere, incomplete, failed):
        assert (answer.status_code, answer.json()["reason"]) == (503, "not_available")
    assert not directory(node).exists()


@pytest.mark.parametrize(
    ("suffix", "status", "reason"),
    [
        ("/files/none.sst", 404, "no_such_resource"),
        ("/files/..%2F..%2Fp0000%2FCURRENT", 404, "no_such_resource"),
        ("/files/LOCK", 404, "no_such_resource"),
        ("/files/CURRENT?offset=17", 400, "invalid_request"),
        ("/files/CURRENT?offset=-1", 400, "invalid_request"),
        ("/files/CURRENT?length=0", 400, "invalid_request"),
        ("/files/CURRENT?length=99999999", 400, "invalid_request"),
        ("/files/CURRENT?offset=0&offset=1", 400, "invalid_request"),
        ("/files/CURRENT?unknown=1", 400, "invalid_request"),
    ],
)
def test_file_or_range_outside_the_manifest_is_refused(
    node: Served, suffix: str, status: int, reason: str
) -> None:
    """A name or a range that is not in the checkpoint is refused."""
    manifest = manifest_of(create(node))

    with node.client(headers=TOKEN) as client:
        answer = client.get(f"{PATH}/{manifest.lease}{suffix}")

    assert (answer.status_code, answer.json()["reason"]) == (status, reason)


@pytest.mark.parametrize("body", [None, [], {}, {"partition": 0}, {"partition": "x", "recordsMin": 1}])
def test_malformed_body_is_refused(node: Served, body: Any) -> None:
    """A body that another version might send is refused by name."""
    with node.client(headers=TOKEN) as client:
        answer = client.post(PATH, json=body)

    assert (answer.status_code, answer.json()["reason"]) == (400, "invalid_request")


def test_manifest_request_returns_progress_until_it_is_ready(
    node: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease exists at once. Each request returns the bytes read since, and the last one the manifest."""
    go_on = threading.Semaphore(0)
    read_into = checkpoints._read_into

    def slowly(digest: Callable[[bytes], None], path: Path, offset: int) -> int:
        go_on.acquire(timeout=10)
        return read_into(digest, path, offset)

    monkeypatch.setattr(checkpoints, "_read_into", slowly)
    with node.client(headers=TOKEN) as client:
        begun = client.post(PATH, json={"partition": 0, "recordsMin": 1})
        lease = begun.json()["lease"]
        seen = []
        while (response := client.get(f"{PATH}/{lease}")).status_code == 202:
            seen.append(response.json()["bytes_read"])
            file = client.get(f"{PATH}/{lease}/files/CURRENT")
            assert file.status_code == 404
            go_on.release(1 if len(seen) < 4 else 100)

    assert begun.status_code == 202
    assert manifest_of(response).lease == lease
    assert seen == sorted(seen)
    assert seen[-1] > seen[0] == 0


def test_failed_checkpoint_is_reported_to_its_caller(node: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed checkpoint raises at its caller, takes no lease, and leaves nothing on the disk."""

    def broken(self: Store, path: Path) -> None:
        path.mkdir()
        raise StoreError("the disk is broken")

    monkeypatch.setattr(Store, "checkpoint", broken)

    for _ in range(10):
        answer = create(node)
        assert (answer.status_code, answer.json()["reason"]) == (503, "not_available")
        assert "the disk is broken" in answer.json()["detail"]
    assert not any(directory(node).iterdir())


def test_released_checkpoint_stops_its_digests(node: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of a released checkpoint are not read to their end."""
    reading, go_on = threading.Event(), threading.Event()

    def hangs(digest: Callable[[bytes], None], path: Path, offset: int) -> int:
        reading.set()
        go_on.wait(10)
        return 1

    monkeypatch.setattr(checkpoints, "_read_into", hangs)
    with node.client(headers=TOKEN) as client:
        lease = client.post(PATH, json={"partition": 0, "recordsMin": 1}).json()["lease"]
        assert reading.wait(10)
        released = client.delete(f"{PATH}/{lease}").status_code
        again = client.get(f"{PATH}/{lease}").status_code
    go_on.set()

    assert (released, again) == (200, 404)
    eventually("nothing is left", lambda: not any(directory(node).iterdir()))


def test_released_checkpoint_is_deleted(node: Served) -> None:
    """A released checkpoint has no directory any more, and a second release is refused."""
    manifest = manifest_of(create(node))

    with node.client(headers=TOKEN) as client:
        statuses = [client.delete(f"{PATH}/{manifest.lease}").status_code for _ in range(2)]
        read = client.get(f"{PATH}/{manifest.lease}/files/CURRENT")

    assert (statuses, read.status_code, list(directory(node).iterdir())) == ([200, 404], 404, [])


def test_unused_checkpoint_expires(node: Served) -> None:
    """A node that died during a fetch costs no disk space for long."""
    node.node.checkpoints.lease_seconds = 0.2
    manifest_of(create(node))

    eventually("the lease has ended", lambda: not any(directory(node).iterdir()))


def test_number_of_checkpoints_is_limited(node: Served) -> None:
    """One more is refused for now, until a lease is released."""
    manifests = [manifest_of(create(node)) for _ in range(8)]

    refused = create(node)
    with node.client(headers=TOKEN) as client:
        client.delete(f"{PATH}/{manifests[0].lease}")

    assert (refused.status_code, refused.json()["reason"]) == (429, "overloaded")
    manifest_of(create(node))


def test_start_deletes_checkpoints_of_a_killed_process(node: Served, tmp_path: Path) -> None:
    """Checkpoints belong to a process, and no later process serves them."""
    left = tmp_path / "checkpoints"
    (left / "0123456789abcdef").mkdir(parents=True)
    (left / "0123456789abcdef" / "CURRENT").write_bytes(os.urandom(16))

    Checkpoints(left, "tests.users.r1", node.node.replicas, 100)

    assert not left.exists()


def test_store_reopens_while_its_checkpoint_exists(node: Served) -> None:
    """A replica's store can be closed and opened again while it has a checkpoint."""
    manifest_of(create(node))
    store = node.node.replicas.by_partition[0].store

    node.on_loop(store.close)

    Store.open(store.path, store.identity, SharedMemory(8, 8)).close()
