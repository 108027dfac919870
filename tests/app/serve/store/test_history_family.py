"""Test the versions of a store against a brute-force fold of random logs, while the sweeper removes some."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

from hypothesis import given, settings
from hypothesis import strategies as st

from queryable_app.config.history import HistorySpec
from queryable_app.serve.store.history_family import PENDING
from queryable_app.serve.store.history_sweep import VersionWalk, raise_floor
from queryable_app.serve.store.shared_memory import SharedMemory
from queryable_app.serve.store.store import Store
from queryable_app.wire.disk_format import Identity, ReplicaState, Row, decode_row, encode_row
from queryable_app.wire.version_keys import HistoryState, is_not_retained

IDENTITY = Identity("tests.users.r1", "users", 0)
KEYS = [b"", b"\0", b"\0\1", b"a", b"a\0", b"b"]
FOREVER = HistorySpec(10**15)

Record = tuple[bytes, int, bytes | None]
"""Key, timestamp, value."""
records = st.lists(
    st.tuples(st.sampled_from(KEYS), st.integers(-5, 60), st.none() | st.binary(max_size=3)),
    min_size=1,
    max_size=40,
)


@contextmanager
def opened(spec: HistorySpec = FOREVER) -> Iterator[Store]:
    with TemporaryDirectory() as directory:
        store = Store.open(Path(directory, "p"), IDENTITY, SharedMemory(8, 8), history=spec)
        try:
            yield store
        finally:
            store.close()


def apply(store: Store, log: Sequence[Record], first: int, sizes: Sequence[int] = ()) -> None:
    """Apply records from the offset `first` on, in slices of these sizes and then one by one."""
    pieces, at = list(sizes), 0
    while at < len(log):
        size = pieces.pop(0) if pieces else 1
        part = log[at : at + size]
        rows = [
            (key, encode_row(Row(first + at + n, time_ms, 0, value)))
            for n, (key, time_ms, value) in enumerate(part)
        ]
        at += len(part)
        state = store.state
        store.apply(
            rows,
            state._replace(position=first + at, rows=state.rows + len(part), last_timestamp_ms=part[-1][1]),
        )


def rows_of_fold(log: Sequence[Record], first: int, position: int) -> dict[bytes, bytes]:
    rows: dict[bytes, bytes] = {}
    for key, _, value in log[: max(0, position - first)]:
        if value is None:
            rows.pop(key, None)
        else:
            rows[key] = value
    return dict(sorted(rows.items()))


def rows_of_store(
    store: Store, time_ms: int | None, position: int | None, reverse: bool = False
) -> dict[bytes, bytes] | None:
    """Return the rows of a moment, or None if the store refuses the moment or a row."""
    assert store.history is not None
    if store.history.refusal(time_ms, position) is not None:
        return None
    rows: dict[bytes, bytes] = {}
    for key, stored in store.history.rows_as_of(store, None, None, reverse, time_ms, position):
        if is_not_retained(stored):
            return None
        if stored and (value := decode_row(stored).value) is not None:
            rows[key] = value
    return rows


def position_of(log: Sequence[Record], first: int, time_ms: int) -> int:
    """Return the position that a time names."""
    clock, position = -(1 << 63), first
    for offset, (_, timestamp_ms, _) in enumerate(log, first):
        clock = max(clock, timestamp_ms)
        if clock <= time_ms:
            position = offset + 1
    return position


@settings(max_examples=150, deadline=None)
@given(log=records, sizes=st.lists(st.integers(1, 9)), first=st.sampled_from([0, 7]), reverse=st.booleans())
def test_every_moment_is_that_of_the_fold(
    log: list[Record], sizes: list[int], first: int, reverse: bool
) -> None:
    """At every position and at every time, a store has the rows that the records before it make."""
    with opened() as store:
        apply(store, log, first, sizes)

        for position in range(first, first + len(log) + 1):
            rows = rows_of_store(store, None, position, reverse)
            assert rows == rows_of_fold(log, first, position)
            assert rows is not None
            assert list(rows) == sorted(rows, reverse=reverse)
        for time_ms in range(-6, 62):
            rows = rows_of_store(store, time_ms, None, reverse)
            if rows is None:
                assert first > 0
                assert time_ms < log[0][1]  # before what the topic still has
            else:
                assert rows == rows_of_fold(log, first, position_of(log, first, time_ms))


@settings(max_examples=150, deadline=None)
@given(
    log=records,
    more=records,
    now_ms=st.integers(0, 90),
    retention_ms=st.integers(1, 40),
    versions=st.none() | st.integers(1, 4),
)
def test_swept_store_refuses_or_is_that_of_the_fold(
    log: list[Record], more: list[Record], now_ms: int, retention_ms: int, versions: int | None
) -> None:
    """After sweeps a store refuses a moment or answers it as before, and it never refuses one within the retention."""
    with opened(HistorySpec(retention_ms, versions)) as store:
        apply(store, log, 0)
        sweep(store, now_ms)
        apply(store, more, len(log))
        sweep(store, now_ms)
        whole, refused = [*log, *more], 0

        for position in range(len(whole) + 1):
            rows = rows_of_store(store, None, position)
            assert rows is None or rows == rows_of_fold(whole, 0, position)
        for time_ms in range(-6, 92):
            rows = rows_of_store(store, time_ms, None)
            assert rows is None or rows == rows_of_fold(whole, 0, position_of(whole, 0, time_ms))
            refused += rows is None and time_ms >= now_ms - retention_ms
        assert versions is not None or refused == 0
        assert rows_of_store(store, None, len(whole)) is not None


@settings(max_examples=50, deadline=None)
@given(log=records, versions=st.integers(1, 4))
def test_number_of_versions_is_bounded(log: list[Record], versions: int) -> None:
    """A sweep leaves no key more versions than the view keeps."""
    with opened(HistorySpec(10**15, versions)) as store:
        apply(store, log, 0)
        sweep(store, 100)

        left = [key[:-12] for key, _ in store.versions(b"\1", b"\2", False)]
        assert all(left.count(group) <= versions for group in left)


def sweep(store: Store, now_ms: int) -> None:
    raise_floor(store, now_ms)
    walk = VersionWalk(scattered=False)
    while walk.step(store, monotonic()):  # a version at a time
        pass


def test_gap_hides_the_past_until_the_end_is_known() -> None:
    """If an offset does not arrive, nothing before the log's end of then is answered, since compaction may have removed it."""
    with opened() as store:
        apply(store, [(b"a", 1, b"1"), (b"a", 2, b"2")], 0)
        apply(store, [(b"a", 9, b"9")], 5)
        assert store.history is not None

        assert store.history.state.gap_position == PENDING
        assert rows_of_store(store, None, 6) is None

        known = store.history.with_end_offset(8, store.history.gap_at_ms + 1, 6)
        assert known is not None
        store.write_versions((), known)
        apply(store, [(b"a", 10, b"10"), (b"a", 11, b"11"), (b"a", 12, b"12")], 6)

        assert rows_of_store(store, None, 7) is None
        assert rows_of_store(store, None, 8) == {b"a": b"11"}
        assert rows_of_store(store, 10, None) is None
        assert rows_of_store(store, 11, None) == {b"a": b"11"}


def test_end_offset_from_before_a_gap_ends_nothing() -> None:
    """An end offset that was looked up before the gap arrived does not say what compaction had replaced then."""
    with opened() as store:
        apply(store, [(b"a", 1, b"1")], 0)
        apply(store, [(b"a", 9, b"9")], 5)
        assert store.history is not None

        assert store.history.with_end_offset(8, store.history.gap_at_ms, 6) is None


def test_gaps_of_a_topic_without_compaction_hide_nothing_until_it_is_compacted(tmp_path: Path) -> None:
    """Missing offsets are those of transactions while the topic is not compacted. Once it may be, they count from then on, also
    in a store that was opened again."""
    memory = SharedMemory(8, 8)
    store = Store.open(tmp_path, IDENTITY, memory, history=FOREVER)
    assert store.history is not None
    assert store.history.with_compaction(False) is None
    apply(store, [(b"a", 1, b"1")], 0)
    apply(store, [(b"a", 9, b"9")], 5)
    assert rows_of_store(store, None, 1) == {b"a": b"1"}
    assert rows_of_store(store, 8, None) == {b"a": b"1"}
    store.close()

    store = Store.open(tmp_path, IDENTITY, memory, history=FOREVER)
    assert store.history is not None
    try:
        assert store.history.with_compaction(False) is None
        assert rows_of_store(store, None, 1) == {b"a": b"1"}
        counted = store.history.with_compaction(True)
        assert counted is not None
        store.write_versions((), counted)
        assert rows_of_store(store, None, 6) is None
        known = store.history.with_end_offset(6, store.history.gap_at_ms + 1, 6)
        assert known is not None
        store.write_versions((), known)
        assert store.history.with_compaction(False) is None
        assert rows_of_store(store, None, 1) is None
        assert rows_of_store(store, None, 6) == {b"a": b"9"}
    finally:
        store.close()


def test_state_of_a_store_without_the_last_field_is_read() -> None:
    """A store that was written before a field of the state was there has its default."""
    state = HistoryState(5, 4, 3, 2, 1, 6)
    assert HistoryState.decode(state.encode()[:48]) == state


def test_versions_and_floor_survive_a_restart(tmp_path: Path) -> None:
    """What one batch wrote of versions is there when the store is opened again, and nothing of it after a clear."""
    memory = SharedMemory(8, 8)
    store = Store.open(tmp_path, IDENTITY, memory, history=FOREVER)
    apply(store, [(b"a", 1, b"1"), (b"a", 2, None)], 4)
    store.close()

    store = Store.open(tmp_path, IDENTITY, memory, history=FOREVER)
    try:
        assert rows_of_store(store, None, 5) == {b"a": b"1"}
        assert rows_of_store(store, None, 3) is None
        store.clear()
        assert list(store.versions(b"", b"\2", False)) == []
        assert store.history is not None
        assert store.history.state == HistoryState()
        assert store.state == ReplicaState()
    finally:
        store.close()
