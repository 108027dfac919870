"""A class data sharing archive: the JVM starts with its classes read and checked, in half of the time.

Strategy: a training run loads what a node loads, and the JVM writes it down as it ends. It is made once for a Java, an
installed Spark and a class path, before the first session, since a running node must neither pause for it nor pay its
memory. Without an archive everything works, only later: when it cannot be made, that is noted and not tried again. The
JVM says nothing of an archive that it does not take, so its name holds all that it looks at, the jars' place and age too.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from queryable_app.jars import find_java, java_release, locked
from queryable_app.log import event

_TRAINING_SECONDS_MAX: Final = 180
_KEPT: Final = 3  # of 160 MB each; older ones belong to installations that are likely gone


def archive_options(cache: Path, class_path: Sequence[Path]) -> list[str]:
    """JVM options that use the archive, which is made first if there is none."""
    archive = archive_path(cache, class_path)
    failed = archive.with_suffix(".failed")
    if not archive.exists() and not failed.exists():
        try:
            with locked(cache, "classes"):
                if not archive.exists() and not failed.exists():  # another process may have been faster
                    _train(archive, cache)
                    if not archive.exists():
                        failed.touch()
                    _forget_old(cache)
        except OSError as error:  # an image's cache cannot be written, and may be of another Java
            event("class-archive", failed=str(error))
    if not archive.exists():
        return []
    with suppress(OSError):  # in an image it cannot be written, and is not forgotten either
        os.utime(archive)
    return [f"-XX:SharedArchiveFile={archive}"]


def archive_path(cache: Path, jars: Sequence[Path]) -> Path:
    key = [java_release(find_java()), *((str(jar), jar.stat().st_mtime_ns) for jar in jars)]
    return cache / f"classes-{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}.jsa"


def _forget_old(cache: Path) -> None:
    by_use = sorted(cache.glob("classes-*.jsa"), key=lambda archive: archive.stat().st_mtime, reverse=True)
    for archive in by_use[_KEPT:]:
        archive.unlink(missing_ok=True)  # whoever has mapped it keeps it


def _train(archive: Path, cache: Path) -> None:
    event("class-archive", reason="the first start with this Java and Spark", path=str(archive))
    new = archive.with_suffix(".new")
    command = [sys.executable, "-m", "queryable_app.ingest.training", str(new), str(cache)]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TRAINING_SECONDS_MAX,
            env={**os.environ, "PYTHONPATH": ":".join(path for path in sys.path if path)},
        )
        if done.returncode == 0 and new.exists():
            new.rename(archive)
        else:
            event("class-archive", failed=(done.stderr or "no archive was written").strip()[-500:])
    except subprocess.TimeoutExpired:
        event("class-archive", failed=f"it took longer than {_TRAINING_SECONDS_MAX} s")
    finally:
        new.unlink(missing_ok=True)
