"""A class data sharing archive: the JVM starts with its classes read and checked, in half of the time.

Strategy: a training run loads what a node loads, and the JVM writes it down as it ends. It is made once for a Java, a
Spark and a class path, before the first session, since a running node must neither pause for it nor pay its memory.
Without an archive everything works, only later: when it cannot be made, that is noted and not tried again.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from queryable_app.jars import find_java, java_release, locked
from queryable_app.log import event

_TRAINING_SECONDS_MAX: Final = 180


def archive_options(cache: Path, class_path: Sequence[Path]) -> list[str]:
    """JVM options that use the archive, which is made first if there is none."""
    key = [java_release(find_java()), importlib.metadata.version("pyspark"), *map(str, class_path)]
    archive = cache / f"classes-{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}.jsa"
    failed = archive.with_suffix(".failed")
    if not archive.exists() and not failed.exists():
        with locked(cache, "classes"):
            if not archive.exists() and not failed.exists():  # another process may have been faster
                _train(archive, cache)
                if not archive.exists():
                    failed.touch()
    return [f"-XX:SharedArchiveFile={archive}"] if archive.exists() else []


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
