"""What a copy that moves from node to node consists of, what of it is still missing, and how fast it may go.

Strategy: a manifest names every file of a checkpoint with its size and its SHA-256. It comes from another node, so a name is
checked before it is used as a path and a size before it is believed. Two manifests that name the same file with the same
digest mean the same bytes: that is how a copy goes on after a lease has ended, or at the same node after its restart.

SHA-256 because of that identity; as a check alone a CRC would do. With the processor's own instructions it takes 1.7 GB/s on
the machine of docs/benchmarks.md (blake2b 0.8, zlib's crc32 4.1): a tenth of a core at 150 MB/s.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

RANGE_BYTES_MAX: Final = 1 << 20
"""Of a file, in one answer."""

CURRENT: Final = "CURRENT"
"""The file in which RocksDB begins to read."""

_FILES_MAX: Final = 100_000
_FILE_BYTES_MAX: Final = 1 << 40
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_LEASE: Final = re.compile(r"[0-9a-f]{16}")


class ManifestError(ValueError):
    """What another node says of its checkpoint cannot be right."""


@dataclass(frozen=True, slots=True)
class CheckpointInProgress:
    """A checkpoint whose manifest is not known yet. Whoever waits for it sees that it goes on."""

    lease: str
    bytes_read: int  # for digests

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str | bytes) -> CheckpointInProgress:
        try:
            raw: Mapping[str, Any] = json.loads(text)
            return CheckpointInProgress(
                _matching(_LEASE, raw["lease"]), _number(raw["bytes_read"], 0, 1 << 63)
            )
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise error if isinstance(error, ManifestError) else ManifestError(repr(error)) from None


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    name: str
    size: int
    digest: str  # SHA-256, hexadecimal


@dataclass(frozen=True, slots=True)
class Manifest:
    """A checkpoint, held under a lease until it was not used for a while."""

    lease: str
    application_id: str
    partition: int
    position: int  # of exactly the rows that are in it
    format: int  # disk_format.FORMAT_VERSION of the node that made it
    files: tuple[CheckpointFile, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str | bytes) -> Manifest:
        """Raises ManifestError for whatever could not come from a node of this version."""
        try:
            raw: Mapping[str, Any] = json.loads(text)
            files = raw["files"]
            if len(files) > _FILES_MAX:
                raise ManifestError(f"has {len(files)} files, and {_FILES_MAX} are allowed")
            manifest = Manifest(
                _matching(_LEASE, raw["lease"]),
                _text(raw["application_id"]),
                _number(raw["partition"], 0, 1 << 31),
                _number(raw["position"], -1, 1 << 63),
                _number(raw["format"], 0, 1 << 31),
                tuple(_file(file) for file in files),
            )
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise error if isinstance(error, ManifestError) else ManifestError(repr(error)) from None
        names = {file.name for file in manifest.files}
        if len(names) != len(manifest.files):
            raise ManifestError("names a file twice")
        if CURRENT not in names:
            raise ManifestError(f"has no {CURRENT}, without which there is no store")
        return manifest


def identical_files(before: Manifest, now: Manifest) -> frozenset[str]:
    """The names under which both have the same bytes."""
    return frozenset(file.name for file in set(before.files) & set(now.files))


class PartialFile(NamedTuple):
    """A file, of which the first `start` bytes are there."""

    file: CheckpointFile
    start: int


def files_to_fetch(manifest: Manifest, sizes: Mapping[str, int]) -> list[PartialFile]:
    """Every file with how much of it is there, the ones that take longest first. Whole ones too: they are to be checked."""
    parts = [PartialFile(file, _believed(sizes.get(file.name, 0), file)) for file in manifest.files]
    return sorted(parts, key=lambda part: part.start - part.file.size)


@dataclass(frozen=True, slots=True)
class FetchProgress:
    """How far a copy from another node is."""

    partition: int
    peer: str  # its address
    bytes_done: int
    bytes_total: int
    bytes_per_second: float


class RateBudget:
    """So many bytes a second, whoever sends them. In any span of time no more than that, and what was sent last."""

    def __init__(self, bytes_per_second: int) -> None:
        self._bytes_per_second = bytes_per_second
        self._free_at = 0.0

    def wait(self, now: float) -> float:
        """Seconds until more may be sent."""
        return max(0.0, self._free_at - now)

    def take(self, size: int, now: float) -> float:
        """Seconds to wait before these bytes are sent; they count from now on."""
        begin = max(now, self._free_at)
        self._free_at = begin + size / self._bytes_per_second
        return begin - now


def _believed(size: int, file: CheckpointFile) -> int:
    return size if size <= file.size else 0


def _file(raw: Mapping[str, Any]) -> CheckpointFile:
    return CheckpointFile(
        _matching(_NAME, raw["name"]),
        _number(raw["size"], 0, _FILE_BYTES_MAX),
        _matching(_DIGEST, raw["digest"]),
    )


def _matching(pattern: re.Pattern[str], value: object) -> str:
    if not isinstance(value, str) or pattern.fullmatch(value) is None:
        raise ManifestError(f"{str(value)[:64]!r} is not allowed")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ManifestError(f"{str(value)[:64]!r} is no text")
    return value


def _number(value: object, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value < high:
        raise ManifestError(f"{str(value)[:64]} is not allowed")
    return value
