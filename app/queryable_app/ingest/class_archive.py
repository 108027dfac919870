"""Find the class data sharing archive, with which the JVM starts in half of the time.

Strategy: a training run loads the classes that a node loads, and the JVM writes the archive when it ends (`ingest.training`).
That takes a core for half a minute, so a node never trains. The image contains an archive, and `qtopic run` makes one beside
hydrated nodes, for the next start. Without an archive the JVM starts later. The JVM ignores an unsuitable archive silently, so
the archive's name is a digest of everything that the JVM compares: the Java release, and each jar's path and time.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from queryable_app.platform.jars import find_java, java_release
from queryable_app.platform.log import event

_RETAINED_MAX: Final = 3  # of 190 MB each; older ones belong to removed installations


def archive_options(cache: Path, class_path: Sequence[Path]) -> list[str]:
    """Return the JVM options that use the archive, or none if there is no archive."""
    archive = archive_path(cache, class_path)
    if not archive.exists():
        event("class-archive", missing=str(archive), effect="Spark starts in twice the time")
        return []
    with suppress(OSError):  # in an image the file is read-only, and is never removed
        os.utime(archive)
    return [f"-XX:SharedArchiveFile={archive}"]


def archive_path(cache: Path, jars: Sequence[Path]) -> Path:
    key = [java_release(find_java()), *((str(jar), jar.stat().st_mtime_ns) for jar in jars)]
    return cache / f"classes-{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}.jsa"


def remove_old_archives(cache: Path) -> None:
    by_use = sorted(cache.glob("classes-*.jsa"), key=lambda archive: archive.stat().st_mtime, reverse=True)
    for archive in by_use[_RETAINED_MAX:]:
        archive.unlink(missing_ok=True)  # a JVM that has mapped the archive keeps it
