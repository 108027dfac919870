"""Stage a checkpoint from a peer in a directory beside the store's own, and rename it into place once it is verified.

    p0003.incoming/plan.json   the peer's address and the manifest
    p0003.incoming/files/      the store's files, each written from its beginning to its end

Strategy: the size of a file says how much of it has arrived, so an interrupted fetch continues where it ended. Every file is
read or written completely under one digest before the directory is opened as a store. Opening changes the files: the plan is
deleted before, and a staging directory without a plan is discarded. The digest proves that the bytes are the peer's. RocksDB's
own checksums, which are all verified then, prove that they were right at the peer. No node opens a store in the staging directory
for reads; the last step is the rename.

Every call blocks. Do not call them on the event loop.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Final, NamedTuple

from queryable_app.serve.base.atomic_file import write_atomically
from queryable_app.serve.store.shared_memory import SharedMemory
from queryable_app.serve.store.store import Store
from queryable_app.serve.store.store_errors import StoreError
from queryable_app.wire.checkpoint_files import (
    Manifest,
    PartialFile,
    files_to_fetch,
    identical_files,
)
from queryable_app.wire.disk_format import Identity
from queryable_app.wire.index_entries import RowIndexes

STAGING_SUFFIX: Final = ".incoming"
_READ_BYTES: Final = 1 << 20
_VERIFY_CACHE_MB: Final = 8


class CorruptCheckpoint(Exception):
    """The received bytes do not match the manifest."""


class InterruptedFetch(NamedTuple):
    """The plan that an interrupted fetch left behind."""

    peer: str
    manifest: Manifest


class StagingDirectory:
    """Stage the store that will stand at `destination`."""

    def __init__(self, destination: Path) -> None:
        self._destination = destination
        self._directory = destination.with_name(destination.name + STAGING_SUFFIX)
        self._files = self._directory / "files"
        self._plan = self._directory / "plan.json"

    def destination_occupied(self) -> bool:
        """Return whether a store exists at the destination."""
        return self._destination.exists() and any(self._destination.iterdir())

    def interrupted_fetch(self) -> InterruptedFetch | None:
        """Return the plan of an interrupted fetch, or None if there is none that can continue."""
        try:
            raw = json.loads(self._plan.read_text())
            return InterruptedFetch(str(raw["peer"]), Manifest.from_json(raw["manifest"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def begin(self, peer: str, manifest: Manifest) -> list[PartialFile]:
        """Start or continue a fetch: retain identical files of an interrupted one, and return the files to fetch.

        Raise OSError if the disk has too little space.
        """
        interrupted = self.interrupted_fetch()
        same = identical_files(interrupted.manifest, manifest) if interrupted else frozenset()
        self._files.mkdir(parents=True, exist_ok=True)
        for path in self._files.iterdir():
            if path.name not in same:
                path.unlink()
        write_atomically(self._plan, json.dumps({"peer": peer, "manifest": manifest.to_json()}))
        parts = files_to_fetch(manifest, self._sizes())
        left = sum(part.file.size - part.start for part in parts)
        free = shutil.disk_usage(self._files).free
        if left > free:
            raise OSError(f"{left} bytes are missing, and {free} are free")
        return parts

    def open(self, part: PartialFile) -> StagedFile:
        return StagedFile(self._files / part.file.name, part)

    def finish(self, manifest: Manifest, identity: Identity, indexes: RowIndexes | None = None) -> None:
        """Open and verify the store, mark it incomplete until it catches up here, and rename it to the destination, in place of
        a damaged store. Raise CorruptCheckpoint."""
        if self._sizes() != {file.name: file.size for file in manifest.files}:
            raise CorruptCheckpoint("files are missing or have another size")
        self._plan.unlink()
        try:
            # Use a separate cache: the node's cache may have the same blocks from before they were damaged.
            memory = SharedMemory(_VERIFY_CACHE_MB, _VERIFY_CACHE_MB)
            store = Store.open(self._files, identity, memory, indexes)
            try:
                if store.state.position != manifest.position:
                    raise CorruptCheckpoint(
                        f"the store is at position {store.state.position}, and its manifest says {manifest.position}"
                    )
                store.verify()
                store.apply((), store.state._replace(complete=False))
            finally:
                store.close()
        except StoreError as error:
            raise CorruptCheckpoint(str(error)) from error
        if self._destination.exists():
            self._destination.rename(self._directory / "before")
        self._files.rename(self._destination)
        self.discard()

    def _sizes(self) -> dict[str, int]:
        return {path.name: path.stat().st_size for path in self._files.iterdir()}

    def discard(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)


class StagedFile:
    """Append to one staged file. The constructor reads the bytes on the disk for the digest."""

    def __init__(self, path: Path, part: PartialFile) -> None:
        self.size = part.start
        self._path = path
        self._expected = part.file
        self._digest = hashlib.sha256()
        with path.open("ab+") as file:
            file.truncate(part.start)
            file.seek(0)
            while block := file.read(_READ_BYTES):
                self._digest.update(block)

    def append(self, block: bytes) -> None:
        with self._path.open("ab") as file:
            file.write(block)
        self._digest.update(block)
        self.size += len(block)

    def check(self) -> None:
        """Raise CorruptCheckpoint if the complete file does not match the manifest."""
        if (self.size, self._digest.hexdigest()) != (self._expected.size, self._expected.digest):
            raise CorruptCheckpoint(f"{self._expected.name} does not match its digest")
