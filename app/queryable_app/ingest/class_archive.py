"""A class data sharing archive: the JVM starts with its classes read and checked, in half of the time.

Strategy: a training run loads what a node loads, and the JVM writes it down as it ends (`ingest.training`). That takes a core for
half a minute, so a node never does it: the image brings its archive, and `qtopic run` makes one beside nodes that have
been hydrated for a while, for the next start. Without an archive everything works, only later. The JVM says nothing of an archive
that it does not take, so its name holds all that it looks at, the jars' place and age too.
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

_KEPT: Final = 3  # of 190 MB each; older ones belong to installations that are likely gone


def archive_options(cache: Path, class_path: Sequence[Path]) -> list[str]:
    """Return the JVM options that use the archive, or none if there is no archive."""
    archive = archive_path(cache, class_path)
    if not archive.exists():
        event("class-archive", missing=str(archive), effect="Spark starts in twice the time")
        return []
    with suppress(OSError):  # in an image it cannot be written, and is not removed either
        os.utime(archive)
    return [f"-XX:SharedArchiveFile={archive}"]


def archive_path(cache: Path, jars: Sequence[Path]) -> Path:
    key = [java_release(find_java()), *((str(jar), jar.stat().st_mtime_ns) for jar in jars)]
    return cache / f"classes-{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}.jsa"


def remove_old_archives(cache: Path) -> None:
    by_use = sorted(cache.glob("classes-*.jsa"), key=lambda archive: archive.stat().st_mtime, reverse=True)
    for archive in by_use[_KEPT:]:
        archive.unlink(missing_ok=True)  # a JVM that has mapped it keeps it
