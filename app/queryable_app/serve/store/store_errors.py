"""Say why a store cannot be used, and classify RocksDB's messages."""

from __future__ import annotations

from pathlib import Path


class StoreError(Exception):
    """The store is unusable. The message says why, and what to do."""


class StoreUnavailable(StoreError):
    """The store cannot be opened or written at present, for example because the disk is full. A later attempt may succeed."""


class StoreDamaged(StoreError):
    """The files are damaged. A restart does not help: the replica has to be hydrated again."""


def is_damage(error: str) -> bool:
    """Return whether RocksDB's message means damaged files."""
    return "Corruption" in error or "No such file" in error


def open_failure(path: Path, error: str) -> StoreError:
    """Return the exception for a store that RocksDB cannot open."""
    if "lock hold" in error or "While lock file" in error:
        return StoreUnavailable(f"{path} is in use by another process; stop it first ({error})")
    if is_damage(error):
        return StoreDamaged(
            f"{path} is damaged ({error}); delete the directory, and the replica is hydrated again from the topic"
        )
    return StoreUnavailable(f"{path} cannot be opened ({error}); mend the disk or its permissions")
