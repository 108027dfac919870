"""Test stores in real directories: atomic writes, refusals, restarts and damage."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rocksdict import Options, Rdict

from queryable_app.errors import Failure, Reason
from queryable_app.serve.store.shared_memory import SharedMemory
from queryable_app.serve.store.store import Store
from queryable_app.serve.store.store_errors import StoreDamaged, StoreError
from queryable_app.wire.disk_format import META, META_FORMAT_KEY, Identity, ReplicaState
from tests.support.damage import damage_rows

IDENTITY = Identity("tests.users.r1", "users", 3)
STATE = ReplicaState(12, True, 5, 1, 2, 3, 4, 99, (0, 7, 8))

OpenStore = Callable[..., Store]


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[OpenStore]:
    opened: list[Store] = []

    def open_(identity: Identity = IDENTITY) -> Store:
        opened.append(Store.open(tmp_path / "p0003", identity, SharedMemory(8, 8)))
        return opened[-1]

    yield open_
    for store in opened:
        store.close()


def test_new_store_is_empty_and_has_no_position(open_store: OpenStore) -> None:
    """A store that did not exist starts without rows and without a position."""
    store = open_store()

    assert (list(store.rows()), store.state, store.last_bad) == ([], ReplicaState(), None)


def test_rows_state_and_last_bad_survive_a_restart(open_store: OpenStore) -> None:
    """What one batch wrote is there, all of it, when the store is opened again."""
    store = open_store()
    store.apply([(b"", b"empty key"), (b"a", b"1")], STATE, {"offset": 9})
    store.close()

    again = open_store()

    assert (list(again.rows()), again.state) == ([(b"", b"empty key"), (b"a", b"1")], STATE)
    assert again.last_bad == {"offset": 9}


def test_unflushed_rows_survive_a_killed_process(open_store: OpenStore, tmp_path: Path) -> None:
    """A store that was never closed or flushed is read from its write-ahead log."""
    open_store().apply([(b"a", b"1")], STATE)
    replica = tmp_path / "copy"
    replica.mkdir()
    for file in (tmp_path / "p0003").iterdir():
        if file.name != "LOCK":
            (replica / file.name).write_bytes(file.read_bytes())

    store = Store.open(replica, IDENTITY, SharedMemory(8, 8))

    assert (store.get(b"a"), store.state) == (b"1", STATE)
    store.close()


def test_later_put_of_a_key_wins(open_store: OpenStore) -> None:
    """Within one slice a key may come twice; the order is kept."""
    store = open_store()

    store.apply([(b"a", b"1"), (b"a", b"2")], STATE)

    assert store.get(b"a") == b"2"


def test_multi_get_returns_values_in_the_order_of_keys(open_store: OpenStore) -> None:
    """A missing key is None at its place."""
    store = open_store()
    store.apply([(b"a", b"1"), (b"c", b"3")], STATE)

    assert store.multi_get([b"c", b"b", b"a", b"c"]) == [b"3", None, b"1", b"3"]


KEYS = st.binary(max_size=3)


@given(keys=st.sets(KEYS, max_size=20), start=st.none() | KEYS, stop=st.none() | KEYS, reverse=st.booleans())
def test_range_includes_its_start_and_excludes_its_stop(
    tmp_path_factory: pytest.TempPathFactory,
    keys: set[bytes],
    start: bytes | None,
    stop: bytes | None,
    reverse: bool,
) -> None:
    """`rows` returns the sorted keys from start to before stop, in either direction, for any bytes."""
    store = _shared_store(tmp_path_factory)
    store.clear()
    store.apply([(key, key) for key in keys], STATE)

    found = [key for key, _ in store.rows(start, stop, reverse)]

    wanted = [k for k in sorted(keys) if (start is None or k >= start) and (stop is None or k < stop)]
    assert found == (wanted[::-1] if reverse else wanted)


_SHARED: dict[str, Store] = {}


def _shared_store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    if "store" not in _SHARED:
        _SHARED["store"] = Store.open(tmp_path_factory.mktemp("shared"), IDENTITY, SharedMemory(8, 8))
    return _SHARED["store"]


def test_iterator_sees_the_rows_of_its_start(open_store: OpenStore) -> None:
    """Rows that are written during an iteration do not appear in it."""
    store = open_store()
    store.apply([(b"a", b"1"), (b"c", b"1")], STATE)
    walk = store.rows()
    first = next(walk)

    store.apply([(b"b", b"2"), (b"c", b"2")], STATE)

    assert [first, *walk] == [(b"a", b"1"), (b"c", b"1")]


def test_clear_deletes_everything_in_one_batch(open_store: OpenStore) -> None:
    """After `clear` the store is like new, also after it is opened again."""
    store = open_store()
    store.set_topic_id("first")
    store.apply([(b"", b"1"), (b"\xff\xff\xff", b"2")], STATE, {"offset": 1})
    store.clear()
    store.close()

    again = open_store()

    assert (list(again.rows()), again.state, again.last_bad, again.identity) == (
        [],
        ReplicaState(),
        None,
        IDENTITY,
    )


def test_topic_id_survives_a_restart(open_store: OpenStore) -> None:
    """The store retains its topic id, which the node does not know when it opens the store."""
    store = open_store()
    store.set_topic_id("abc")
    store.close()

    assert open_store().identity.topic_id == "abc"


@pytest.mark.parametrize(
    "other",
    [
        Identity("tests.users.r2", "users", 3),
        Identity("tests.users.r1", "orders", 3),
        Identity("tests.users.r1", "users", 4),
    ],
    ids=["application", "topic", "partition"],
)
def test_store_of_another_identity_is_refused(open_store: OpenStore, other: Identity) -> None:
    """Opening a store with the rows of another application, topic or partition fails, and the message says
    what to do."""
    open_store().close()

    with pytest.raises(StoreError, match=r"holds partition 3 of topic 'users' .*another data directory"):
        open_store(other)


def test_another_format_version_is_refused(open_store: OpenStore, tmp_path: Path) -> None:
    """A store of another version is not touched; the message says what to do."""
    open_store().close()
    options = {name: Options(raw_mode=True) for name in ("default", META)}
    db = Rdict(str(tmp_path / "p0003"), options["default"], column_families=options)
    db.get_column_family(META)[META_FORMAT_KEY] = b"999"
    db.close()

    with pytest.raises(StoreError, match=r"format 999.*run the version that wrote it, or delete"):
        open_store()


def test_foreign_database_is_refused(open_store: OpenStore, tmp_path: Path) -> None:
    """Opening a RocksDB with other rows fails, and leaves it unchanged."""
    db = Rdict(str(tmp_path / "p0003"), Options(raw_mode=True))
    db[b"a"] = b"1"
    db.close()

    with pytest.raises(StoreError, match="not a store of this project"):
        open_store()


@pytest.mark.parametrize("file", ["CURRENT", "MANIFEST"])
def test_damaged_store_fails_to_open_with_advice(open_store: OpenStore, tmp_path: Path, file: str) -> None:
    """Opening a damaged store fails with an error that says what to do."""
    store = open_store()
    store.apply([(b"a", b"1")], STATE)
    store.close()
    next((tmp_path / "p0003").glob(f"{file}*")).write_bytes(b"garbage\n")

    with pytest.raises(StoreError, match=r"is damaged.*delete the directory"):
        open_store()


READS: list[Callable[[Store], object]] = [
    lambda store: store.get(b"key-500"),
    lambda store: store.multi_get([b"key-000", b"key-500"]),
    lambda store: list(store.rows()),
    lambda store: list(store.rows(reverse=True)),
    lambda store: list(store.rows(b"key-500")),
    lambda store: list(store.rows(None, b"key-501", reverse=True)),
]


@pytest.mark.parametrize(
    "read", READS, ids=["get", "multi-get", "all", "backwards", "from", "backwards-from"]
)
def test_read_of_an_unreadable_block_fails(
    open_store: OpenStore, tmp_path: Path, read: Callable[[Store], object]
) -> None:
    """A read that reaches a damaged block fails. It never returns only the rows before the block."""
    store = open_store()
    store.apply([(b"key-%03d" % n, b"%d" % (n**9) * 20) for n in range(1000)], STATE)
    store.close()
    largest = max((tmp_path / "p0003").glob("*.sst"), key=lambda file: file.stat().st_size)
    content = bytearray(largest.read_bytes())
    middle = len(content) // 2
    content[middle - 5000 : middle + 5000] = bytes(10_000)
    largest.write_bytes(content)

    with pytest.raises(Failure, match="partition 3 on this node cannot be read") as failure:
        read(open_store())
    assert failure.value.reason is Reason.NOT_AVAILABLE


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_damage_anywhere_is_detected_or_harmless(
    written: tuple[Path, dict[bytes, bytes]], data: st.DataObject
) -> None:
    """Whatever byte of the rows' file has changed: the store does not open, verifying it says so, or every read is right or
    fails."""
    whole, rows = written
    size = largest_of(whole).stat().st_size
    at = data.draw(st.integers(0, size - 1) | st.integers(max(0, size - 4000), size - 1))
    flip = data.draw(st.integers(1, 255))
    with TemporaryDirectory() as directory:
        path = Path(directory, "p0003")
        shutil.copytree(whole, path)
        with largest_of(path).open("r+b") as file:
            file.seek(at)
            [byte] = file.read(1)
            file.seek(at)
            file.write(bytes([byte ^ flip]))
        try:
            store = Store.open(path, IDENTITY, SharedMemory(8, 8))
        except StoreDamaged:
            return
        try:
            store.verify()
            verified = True
        except StoreDamaged:
            verified = False
        read: dict[bytes, bytes | None] = {}
        for key in rows:
            with suppress(Failure):
                read[key] = store.get(key)
        store.close()

    assert read.items() <= rows.items()
    assert len(read) == len(rows) or not verified


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[bytes, bytes]]:
    """Return a closed store whose rows are in one file, and its rows."""
    path = tmp_path_factory.mktemp("written") / "p0003"
    rows = {b"key-%03d" % n: b"%d" % (n**9) * 20 for n in range(300)}
    store = Store.open(path, IDENTITY, SharedMemory(8, 8))
    store.apply(rows.items(), STATE)
    store.close()
    return path, rows


def largest_of(store: Path) -> Path:
    return max(store.glob("*.sst"), key=lambda file: file.stat().st_size)


def test_verify_accepts_an_undamaged_store(open_store: OpenStore) -> None:
    """`verify` accepts an empty store, one with a row, and one with more rows than one step reads."""
    for rows in (0, 1, 5000):
        store = open_store()
        store.apply([(b"key-%06d" % n, b"1") for n in range(rows)], STATE)
        store.flush()
        store.verify()
        store.close()


def test_damage_found_by_a_compaction_is_reported(open_store: OpenStore, tmp_path: Path) -> None:
    """RocksDB then refuses writes, and the store reports the damage although no read has found it."""
    store = open_store()
    store.apply([(b"key-%03d" % n, b"%d" % (n**9) * 20) for n in range(1000)], STATE)
    store.flush()
    damage_rows(tmp_path / "p0003")
    store.apply([(b"key-%03d" % n, b"1") for n in range(0, 1000, 2)], STATE)

    store.compact(b"", b"z")

    with pytest.raises(StoreError, match="cannot be written"):
        store.apply([(b"a", b"1")], STATE)
    assert "Corruption" in (store.damaged or "")


def test_store_opens_only_once(open_store: OpenStore) -> None:
    """A second opening is refused with a message, and the first one keeps working."""
    store = open_store()

    with pytest.raises(StoreError, match="in use by another process"):
        open_store()

    assert store.get(b"a") is None


def test_closed_store_reopens_at_once(open_store: OpenStore) -> None:
    """A closed store leaves nothing behind that holds the lock."""
    for _ in range(3):
        open_store().close()


def test_compaction_frees_the_space_of_deleted_rows(open_store: OpenStore) -> None:
    """Deleted rows take no space once their range is compacted."""
    store = open_store()
    keys = [f"{i:06d}".encode() for i in range(20_000)]
    store.apply([(key, key * 20) for key in keys], STATE)
    store.close()
    store = open_store()
    before = store.size_bytes()

    store.delete(keys)
    store.compact(keys[0], keys[-1] + b"\0")

    assert store.size_bytes() < before / 3
