"""Open the database of a replica, and check that it holds what it is opened for."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from rocksdict import Rdict

from queryable_app.aggregates.clock import Clock
from queryable_app.policy.source_positions import SourcePositions
from queryable_app.serve.store.shared_memory import SharedMemory, rocksdb_options
from queryable_app.serve.store.store_errors import StoreError, open_failure
from queryable_app.wire.disk_format import (
    FORMAT_VERSION,
    HISTORY,
    INDEX,
    META,
    META_CLOCK_KEY,
    META_FORMAT_KEY,
    META_IDENTITY_KEY,
    META_LAST_BAD_KEY,
    META_SOURCES_KEY,
    META_STATE_KEY,
    ROWS,
    Identity,
    ReplicaState,
)

_META_MEMTABLE_BYTES: Final = 4 << 20
_INDEXED_MEMTABLE_BYTES_MAX: Final = (
    4 << 20
)  # a row has several entries: in 8 MB a write costs an eighth more


class StoredContent(NamedTuple):
    """What a store says about its rows."""

    identity: Identity
    state: ReplicaState = ReplicaState()
    last_bad: Any = None
    sources: SourcePositions | None = None
    clock: Clock | None = None


def open_database(path: Path, memory: SharedMemory, with_index: bool, with_history: bool = False) -> Rdict:
    """Open or create the database. Raises StoreError."""
    path.mkdir(parents=True, exist_ok=True)
    memtable_bytes = memory.memtable_bytes
    if with_index:
        memtable_bytes = min(memtable_bytes, _INDEXED_MEMTABLE_BYTES_MAX)
    rows = rocksdb_options(memory, memtable_bytes, with_index)
    try:
        # Without `column_families` a re-opened store silently falls back to an 8 MB cache and no bloom filter.
        families = {ROWS: rows, META: rocksdb_options(memory, _META_MEMTABLE_BYTES)}
        there = _families(path)  # RocksDB opens all that a store has, or none
        for name, wanted in ((INDEX, with_index), (HISTORY, with_history)):
            if wanted or name in there:
                families[name] = rocksdb_options(memory, memtable_bytes, with_index, only_ranges=True)
        db = Rdict(str(path), rows, column_families=families)
    except Exception as error:  # rocksdict raises nothing more specific
        raise open_failure(path, str(error)) from error
    capacity = db.property_int_value("rocksdb.block-cache-capacity")
    if capacity != memory.block_cache_bytes:
        db.close()
        raise StoreError(f"{path}: RocksDB ignored its options; it caches {capacity} bytes")
    return db


def stored_content(path: Path, db: Rdict, identity: Identity) -> StoredContent:
    """Return what an open store holds if its disk format and identity are right. Begin a new one."""
    meta = db.get_column_family(META)
    version = meta.get(META_FORMAT_KEY)
    if version is None:
        if next(iter(db.keys()), None) is not None:
            raise StoreError(
                f"{path} has rows but no format version: it is not a store of this project; move it away"
            )
        meta[META_IDENTITY_KEY] = identity_json(identity)
        meta[META_STATE_KEY] = ReplicaState().encode()
        meta[META_FORMAT_KEY] = str(
            FORMAT_VERSION
        ).encode()  # last: a store without a format version counts as new
        return StoredContent(identity)
    if version != str(FORMAT_VERSION).encode():
        raise StoreError(
            f"{path} has on-disk format {version.decode(errors='replace')}, and this version writes {FORMAT_VERSION}: "
            f"run the version that wrote it, or delete the directory to hydrate the replica again from the topic"
        )
    try:
        raw_identity: Any = meta[META_IDENTITY_KEY]
        raw_state: Any = meta[META_STATE_KEY]
        owner = Identity(**json.loads(raw_identity))
        state = ReplicaState.decode(raw_state)
        raw_bad = meta.get(META_LAST_BAD_KEY)
        last_bad = json.loads(raw_bad) if raw_bad else None
        raw_sources: Any = meta.get(META_SOURCES_KEY)
        sources = SourcePositions.decode(raw_sources) if raw_sources else None
        raw_clock: Any = meta.get(META_CLOCK_KEY)
        clock = Clock.decode(raw_clock) if raw_clock else None
    except Exception as error:
        raise open_failure(path, f"Corruption: its own state is unreadable, {error!r}") from error
    if replace(owner, topic_id=identity.topic_id, indexes=identity.indexes) != identity:
        raise StoreError(
            f"{path} holds partition {owner.partition} of topic {owner.topic!r} for {owner.application_id}, not "
            f"partition {identity.partition} of {identity.topic!r} for {identity.application_id}: use another data "
            f"directory, or delete this one"
        )
    if owner.indexes != identity.indexes:
        raise StoreError(
            f"{path} was made with other indexes ({owner.indexes or 'none'}, and the view has {identity.indexes or 'none'}): "
            f"make a new revision of the view, or delete the directory to hydrate the replica again"
        )
    return StoredContent(owner, state, last_bad, sources, clock)


def _families(path: Path) -> Collection[str]:
    """Return the column families of a store on disk."""
    return Rdict.list_cf(str(path)) if (path / "CURRENT").exists() else ()


def identity_json(identity: Identity) -> bytes:
    """Return an identity as the store keeps it."""
    fields = asdict(identity)
    if not identity.indexes:
        del fields["indexes"]  # so that an earlier version reads the store
    return json.dumps(fields).encode()
