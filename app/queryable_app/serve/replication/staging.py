"""The directory in which a copy from another node arrives, beside the place where it will stand.

    p0003.incoming/plan.json   from whom it comes, and its manifest
    p0003.incoming/files/      the store's files, each written from its beginning to its end

Strategy: the size of a file says how much of it is there, so nothing has to be noted while it arrives, and whatever is cut
off goes on where it ended. Every file is read or written whole under one digest before the directory is opened as a store.
Opening changes its files: from then on the plan is gone, and a directory without a plan is worth nothing. The digest says that
the bytes are the peer's, and RocksDB's own checksums, all of which are held against the rows then, that they were right
there. Nothing of all this has a path that anybody opens; the last step is the rename to the place where the store is looked for.

Every call blocks: not for the event loop.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from queryable_app.serve.base.atomic_file import write_atomically
from queryable_app.serve.store.store import SharedMemory, Store, StoreError
from queryable_app.wire.checkpoint_files import (
    Manifest,
    PartialFile,
    files_to_fetch,
    identical_files,
)
from queryable_app.wire.disk_format import Identity

STAGING_SUFFIX: Final = ".incoming"
_READ_BYTES: Final = 1 << 20
_VERIFY_CACHE_MB: Final = 8


class CorruptCheckpoint(Exception):
    """What has arrived is not what was said to come."""


class InterruptedFetch(NamedTuple):
    """What an interrupted copy has left."""

    peer: str
    manifest: Manifest


class StagingDirectory:
    def __init__(self, into: Path) -> None:
        self._into = into
        self._directory = into.with_name(into.name + STAGING_SUFFIX)
        self._files = self._directory / "files"
        self._plan = self._directory / "plan.json"

    def occupied(self) -> bool:
        """There is a store already in the place where this one would stand."""
        return self._into.exists() and any(self._into.iterdir())

    def interrupted_fetch(self) -> InterruptedFetch | None:
        """None also for what cannot be gone on with."""
        try:
            raw = json.loads(self._plan.read_text())
            return InterruptedFetch(str(raw["peer"]), Manifest.from_json(raw["manifest"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def begin(self, peer: str, manifest: Manifest) -> list[PartialFile]:
        """Keep of an earlier copy what is the same in this one; returns what is to be fetched."""
        interrupted_fetch = self.interrupted_fetch()
        same = identical_files(interrupted_fetch.manifest, manifest) if interrupted_fetch else frozenset()
        self._files.mkdir(parents=True, exist_ok=True)
        for path in self._files.iterdir():
            if path.name not in same:
                path.unlink()
        write_atomically(self._plan, json.dumps({"peer": peer, "manifest": manifest.to_json()}))
        parts = files_to_fetch(manifest, self._sizes())
        left = sum(part.file.size - part.start for part in parts)
        free = shutil.disk_usage(self._files).free
        if left > free:
            raise OSError(f"{left} bytes are to come, and {free} are free")
        return parts

    def open(self, part: PartialFile) -> StagedFile:
        return StagedFile(self._files / part.file.name, part)

    def finish(self, manifest: Manifest, identity: Identity) -> None:
        """Make a store of the files, which have been checked one by one, and put it in its place, instead of what may be
        there. It counts as incomplete until it has reached the log's end here. Raises CorruptCopy."""
        if self._sizes() != {file.name: file.size for file in manifest.files}:
            raise CorruptCheckpoint("files are missing, or not of their size")
        self._plan.unlink()
        try:
            # With a cache of its own: the node's may have the same blocks, from when they were whole.
            store = Store.open(self._files, identity, SharedMemory(_VERIFY_CACHE_MB, _VERIFY_CACHE_MB))
            try:
                if store.state.position != manifest.position:
                    raise CorruptCheckpoint(
                        f"the store is at position {store.state.position}, and {manifest.position} was said"
                    )
                store.verify()
                store.apply((), replace(store.state, complete=False))
            finally:
                store.close()
        except StoreError as error:
            raise CorruptCheckpoint(str(error)) from error
        if self._into.exists():
            self._into.rename(self._directory / "before")
        self._files.rename(self._into)
        self.discard()

    def _sizes(self) -> dict[str, int]:
        return {path.name: path.stat().st_size for path in self._files.iterdir()}

    def discard(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)


class StagedFile:
    """A file that grows by what is appended to it. What is there already is read for the digest."""

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
        if (self.size, self._digest.hexdigest()) != (self._expected.size, self._expected.digest):
            raise CorruptCheckpoint(f"{self._expected.name} is not what its digest says")
