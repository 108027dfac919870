"""Own the data directory of one `qtopic run`: its locks, its files, and the description for scripts.

    kafka/            the embedded broker: its records, address and log
    nodes/<ordinal>/  the stores of a pod; with workers, below worker-<number>/
    logs/             one file for each process
    placement.json    the replicas of each partition
    spec.json         the spec that the nodes read
    wanted.json       the desired scale, once `qtopic scale` or `qtopic standby` has requested one
    view.json         the revision of the stores
    run.json          the nodes and their processes, while they answer
    resource.json     the resource that runs

Two locks guard it. One belongs to the run. Every process of the run inherits the other, so that it is free only when the last
of them has ended: a run after a kill -9 waits for that, and never shares files with a dying process.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from queryable_app.platform.file_lock import FileLocked, file_lock, locked

_LEFTOVERS_SECONDS: Final = 20
RESOURCE_FILE: Final = "resource.json"
_RUN_FILE: Final = "run.json"
_PROCESSES_LOCK: Final = ".processes.lock"
_TEMPORARY_MARKER: Final = ".gone-at-end"  # in a directory that a run without --data created


class DirectoryError(Exception):
    """The directory cannot be used; the message says why."""


class DataDirectory:
    """The files of a run. `opened` creates it."""

    def __init__(self, path: Path, sockets: Path, lock: int) -> None:
        self.path = path
        self.lock = lock
        """The file descriptor that every process of the run inherits."""
        self.kafka = path / "kafka"
        self._sockets = sockets

    def log(self, process: str) -> Path:
        return self.path / "logs" / f"{process}.log"

    def pod_data(self, ordinal: int) -> Path:
        return self.path / "nodes" / str(ordinal)

    def pod_sockets(self, ordinal: int) -> Path:
        directory = self._sockets / str(ordinal)
        directory.mkdir(exist_ok=True)
        return directory

    def job_sockets(self, name: str) -> Path:
        """Return the directory of a process that is no pod, such as the rekey job."""
        directory = self._sockets / name
        directory.mkdir(exist_ok=True)
        return directory

    def internal_token(self) -> Path:
        """Return the file with the token of the requests between nodes. Only its owner can read it."""
        file = self.path / "internal-token"
        if not file.exists():
            _create(file, secrets.token_urlsafe(32))
        return file

    def read(self, name: str) -> Mapping[str, Any] | None:
        try:
            found: Mapping[str, Any] = json.loads((self.path / name).read_text())
        except FileNotFoundError:
            return None
        return found

    def write(self, name: str, content: Mapping[str, Any]) -> Path:
        file = self.path / name
        write_file(file, content)
        return file

    def write_run(self, run: Mapping[str, Any]) -> None:
        self.write(_RUN_FILE, run)

    def remove_run(self) -> None:
        self.remove(_RUN_FILE)

    def remove(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    def remove_pods_from(self, ordinal: int) -> None:
        """Remove the data of the pods with this ordinal or a higher one."""
        for directory in (self.path / "nodes").glob("*"):
            if int(directory.name) >= ordinal:
                shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def opened(path: Path | None) -> Iterator[DataDirectory]:
    """Lock the directory at `path` for this run. Without a path, create one and remove it at the end."""
    with contextlib.ExitStack() as stack:
        _remove_killed_runs()
        if path is None:
            path = Path(tempfile.mkdtemp(prefix="qtopic-"))
            stack.callback(shutil.rmtree, path, ignore_errors=True)
            (path / _TEMPORARY_MARKER).touch()
        try:
            path.mkdir(parents=True, exist_ok=True)
            _lock(
                stack,
                path / ".run.lock",
                0,
                f"another qtopic run uses {path}: stop it, or give another --data",
            )
            lock = _lock(
                stack,
                path / _PROCESSES_LOCK,
                _LEFTOVERS_SECONDS,
                f"processes of an earlier run still use {path}",
            )
        except OSError as e:
            raise DirectoryError(f"the directory {path} cannot be used: {e.strerror}") from e
        path = path.resolve()
        sockets = _socket_directory(path)
        stack.callback(shutil.rmtree, sockets, ignore_errors=True)
        (sockets / "data").symlink_to(path)
        directory = DataDirectory(path, sockets, lock)
        directory.remove_run()
        stack.callback(directory.remove_run)
        yield directory


def newest_run_directory() -> Path | None:
    """Return the data directory of this user's run that wrote its `run.json` last."""
    found = []
    for sockets in Path(tempfile.gettempdir()).glob(f"{_socket_prefix()}*"):
        with contextlib.suppress(OSError):
            if sockets.stat().st_uid == os.getuid():
                run_file = sockets / "data" / _RUN_FILE
                found.append((run_file.stat().st_mtime, run_file.parent.resolve()))
    return max(found)[1] if found else None


def write_file(file: Path, content: Mapping[str, Any]) -> None:
    """Write the file atomically. Only its owner can read it: a resource may contain a password."""
    partial = file.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    _create(partial, json.dumps(content, indent=2) + "\n")
    partial.replace(file)


def run_description(data: Path) -> Mapping[str, Any] | None:
    """Return the description of the run with this data directory; None while it has none."""
    try:
        found: Mapping[str, Any] = json.loads((data / _RUN_FILE).read_text())
    except OSError:
        return None
    return found


def _lock(stack: contextlib.ExitStack, file: Path, seconds: float, refusal: str) -> int:
    try:
        return stack.enter_context(file_lock(file, seconds)).fileno()
    except FileLocked:
        raise DirectoryError(refusal) from None


def _remove_killed_runs() -> None:
    """Remove what runs have left that were killed with -9."""
    for sockets in Path(tempfile.gettempdir()).glob(f"{_socket_prefix()}*"):
        data = sockets / "data"
        with contextlib.suppress(OSError):
            if sockets.stat().st_uid != os.getuid():
                continue
            if not data.exists():
                if data.is_symlink():  # otherwise another run is creating it
                    shutil.rmtree(sockets)
                continue
            with (data / _PROCESSES_LOCK).open("a") as handle:
                if not locked(handle):  # its processes still run
                    continue
                if (data / _TEMPORARY_MARKER).exists():
                    shutil.rmtree(data.resolve())
                shutil.rmtree(sockets)


def _create(file: Path, text: str) -> None:
    """Create a file that only its owner can read. Raises FileExistsError."""
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
        out.write(text)


def _socket_directory(data: Path) -> Path:
    """Create an empty directory with a short path, as Unix sockets need. The path depends on `data` alone, so that the next
    run finds what a killed one has left."""
    name = _socket_prefix() + hashlib.sha256(str(data).encode()).hexdigest()[:12]
    directory = Path(tempfile.gettempdir()) / name
    shutil.rmtree(directory, ignore_errors=True)
    try:
        directory.mkdir(mode=0o700)  # fails if another user has created it
    except FileExistsError as e:
        raise DirectoryError(f"{directory} belongs to another user: remove it, or give another --data") from e
    return directory


def _socket_prefix() -> str:
    return f"qtopic-{os.getuid()}-"
