"""Describe a checkpoint that moves between nodes: its files, which of them are missing, and how fast they may be sent.

Strategy: a manifest names every file of a checkpoint with its size and its SHA-256. It comes from another node, so a name is
checked before it is used as a path, and a size before it is used. If two manifests name the same file with the same digest, the
bytes are the same: so a fetch continues after a lease has ended, or at the same node after its restart.

The digest is SHA-256 because it identifies files; a CRC would be enough as a check. With the processor's own instructions SHA-256
takes 1.7 GB/s on the machine of docs/benchmarks.md (blake2b 0.8, zlib's crc32 4.1): a tenth of a core at 150 MB/s.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple, TypeVar

from queryable_app.wire.checked import (
    OFFSET_MAX,
    PARTITION_MAX,
    Check,
    field,
    list_of,
    matching,
    offset,
    partition,
    text,
    whole,
)

T = TypeVar("T")

RANGE_BYTES_MAX: Final = 1 << 20
"""The most bytes of a file in one response."""

CURRENT: Final = "CURRENT"
"""The file in which RocksDB begins to read."""

_FILES_MAX: Final = 100_000
_FILE_BYTES_MAX: Final = 1 << 40
_NAME: Final = matching(re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"))
_DIGEST: Final = matching(re.compile(r"[0-9a-f]{64}"))
_LEASE: Final = matching(re.compile(r"[0-9a-f]{16}"))


class ManifestError(ValueError):
    """Another node described its checkpoint in a way that cannot be right."""


@dataclass(frozen=True, slots=True)
class CheckpointInProgress:
    """A checkpoint without a manifest yet. The growing number shows that the peer makes progress."""

    lease: str
    bytes_read: int  # for digests

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(json_text: str | bytes) -> CheckpointInProgress:
        """Parse the JSON, or raise ManifestError."""
        return _parsed(json_text, _checkpoint_in_progress)


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    name: str
    size: int
    digest: str  # SHA-256, hexadecimal


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of a checkpoint, under its lease."""

    lease: str
    application_id: str
    partition: int
    position: int  # of exactly the rows in the checkpoint
    format: int  # disk_format.FORMAT_VERSION of the node that made it
    files: tuple[CheckpointFile, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(json_text: str | bytes) -> Manifest:
        """Parse the JSON, or raise ManifestError if no node of this version could have sent it."""
        manifest = _parsed(json_text, _manifest)
        names = {file.name for file in manifest.files}
        if len(names) != len(manifest.files):
            raise ManifestError("names a file twice")
        if CURRENT not in names:
            raise ManifestError(f"has no {CURRENT}, without which there is no store")
        return manifest


def identical_files(before: Manifest, now: Manifest) -> frozenset[str]:
    """Return the names of the files that have the same bytes in both."""
    return frozenset(file.name for file in set(before.files) & set(now.files))


class PartialFile(NamedTuple):
    """A file whose first `start` bytes are on the disk."""

    file: CheckpointFile
    start: int


def files_to_fetch(manifest: Manifest, sizes: Mapping[str, int]) -> list[PartialFile]:
    """Return every file with the bytes on the disk, the longest to fetch first. Complete files are included: they are checked."""
    parts = [PartialFile(file, _start(sizes.get(file.name, 0), file)) for file in manifest.files]
    return sorted(parts, key=lambda part: part.start - part.file.size)


@dataclass(frozen=True, slots=True)
class FetchProgress:
    """The progress of a checkpoint fetch."""

    partition: int
    peer: str  # its address
    bytes_done: int
    bytes_total: int
    bytes_per_second: float


class RateBudget:
    """Limit the bytes a second of all senders together. Any span of time sends at most that, plus the last piece."""

    def __init__(self, bytes_per_second: int) -> None:
        self._bytes_per_second = bytes_per_second
        self._free_at = 0.0

    def wait(self, now: float) -> float:
        """Return the seconds until more may be sent."""
        return max(0.0, self._free_at - now)

    def take(self, size: int, now: float) -> float:
        """Reserve the bytes, and return the seconds to wait before they are sent."""
        begin = max(now, self._free_at)
        self._free_at = begin + size / self._bytes_per_second
        return begin - now


def _start(size: int, file: CheckpointFile) -> int:
    return size if size <= file.size else 0  # too long: not this file


def _parsed(json_text: str | bytes, check: Check[T]) -> T:
    try:
        return check(json.loads(json_text))
    except (ValueError, RecursionError) as error:
        raise ManifestError(str(error)) from None


def _checkpoint_in_progress(raw: Any) -> CheckpointInProgress:
    return CheckpointInProgress(field(raw, "lease", _LEASE), field(raw, "bytes_read", whole(0, OFFSET_MAX)))


def _manifest(raw: Any) -> Manifest:
    return Manifest(
        field(raw, "lease", _LEASE),
        field(raw, "application_id", text),
        field(raw, "partition", partition),
        field(raw, "position", offset),
        field(raw, "format", whole(0, PARTITION_MAX)),
        field(raw, "files", _files),
    )


def _files(raw: Any) -> tuple[CheckpointFile, ...]:
    if isinstance(raw, list) and len(raw) > _FILES_MAX:
        raise ManifestError(f"has {len(raw)} files, and {_FILES_MAX} are allowed")
    return tuple(list_of(_file)(raw))


def _file(raw: Any) -> CheckpointFile:
    return CheckpointFile(
        field(raw, "name", _NAME),
        field(raw, "size", whole(0, _FILE_BYTES_MAX - 1)),
        field(raw, "digest", _DIGEST),
    )
