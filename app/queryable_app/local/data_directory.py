"""The directory of one `qtopic run`: who may use it, what lies where, and what is told to scripts.

    kafka/            the embedded broker: its records, address and log
    nodes/<ordinal>/  a node's stores
    logs/             one file for each process
    placement.json    who holds which partition
    spec.json         what the nodes are to make of the topic
    wanted.json       how many nodes and copies there shall be, when someone has asked for it meanwhile
    view.json         which revision the stores hold
    run.json          the nodes and their processes, while they answer
    resource.json     the resource that runs

Two locks guard it. One is the run's own. The other is inherited by every process of the run, so that it is free only
when the last of them is gone: a run after a kill -9 waits for that, and never meets a dying process on its files.
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
_RUN_FILE: Final = "run.json"
_PROCESSES_LOCK: Final = ".processes.lock"
_GONE_AT_END: Final = ".gone-at-end"  # in a directory that nobody asked to keep


class DirectoryError(Exception):
    """The directory cannot be used; the message says why."""


class DataDirectory:
    """Get it with `opened`."""

    def __init__(self, path: Path, sockets: Path, lock: int) -> None:
        self.path = path
        self.lock = lock
        """The file descriptor that every process of the run inherits."""
        self.kafka = path / "kafka"
        self._sockets = sockets

    def log(self, process: str) -> Path:
        return self.path / "logs" / f"{process}.log"

    def node_data(self, ordinal: int) -> Path:
        return self.path / "nodes" / str(ordinal)

    def node_sockets(self, ordinal: int) -> Path:
        directory = self._sockets / str(ordinal)
        directory.mkdir(exist_ok=True)
        return directory

    def internal_token(self) -> Path:
        """A file that only its owner can read, with the token that nodes show one another."""
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

    def forget_run(self) -> None:
        self.forget(_RUN_FILE)

    def forget(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    def forget_nodes_from(self, ordinal: int) -> None:
        """Takes the stores of these nodes away: of all, from 0."""
        for directory in (self.path / "nodes").glob("*"):
            if int(directory.name) >= ordinal:
                shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def opened(path: Path | None) -> Iterator[DataDirectory]:
    """The directory at `path`, for this run alone; without a path, one that is gone at the end."""
    with contextlib.ExitStack() as stack:
        _forget_killed_runs()
        if path is None:
            path = Path(tempfile.mkdtemp(prefix="qtopic-"))
            stack.callback(shutil.rmtree, path, ignore_errors=True)
            (path / _GONE_AT_END).touch()
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
        directory.forget_run()
        stack.callback(directory.forget_run)
        yield directory


def newest_run_directory() -> Path | None:
    """The data directory of the run that wrote its `run.json` last, of this user on this machine."""
    found = []
    for sockets in Path(tempfile.gettempdir()).glob(f"{_socket_prefix()}*"):
        with contextlib.suppress(OSError):
            if sockets.stat().st_uid == os.getuid():
                run_file = sockets / "data" / _RUN_FILE
                found.append((run_file.stat().st_mtime, run_file.parent.resolve()))
    return max(found)[1] if found else None


def write_file(file: Path, content: Mapping[str, Any]) -> None:
    """Whole or not at all: a reader never sees half of it. For its owner alone: a resource may hold a password."""
    partial = file.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    _create(partial, json.dumps(content, indent=2) + "\n")
    partial.replace(file)


def run_description(data: Path) -> Mapping[str, Any] | None:
    """What the run over this directory says of itself; None while it says nothing."""
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


def _forget_killed_runs() -> None:
    """What runs could not take away because they were killed with -9."""
    for sockets in Path(tempfile.gettempdir()).glob(f"{_socket_prefix()}*"):
        data = sockets / "data"
        with contextlib.suppress(OSError):
            if sockets.stat().st_uid != os.getuid():
                continue
            if not data.exists():
                if data.is_symlink():  # otherwise it is being made
                    shutil.rmtree(sockets)
                continue
            with (data / _PROCESSES_LOCK).open("a") as handle:
                if not locked(handle):  # its processes live
                    continue
                if (data / _GONE_AT_END).exists():
                    shutil.rmtree(data.resolve())
                shutil.rmtree(sockets)


def _create(file: Path, text: str) -> None:
    """A file that only its owner can read, and that is not there yet."""
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
        out.write(text)


def _socket_directory(data: Path) -> Path:
    """An empty directory with a short path, since that of a Unix socket is bounded. The same one for the same data, so
    that what a killed run left is found."""
    name = _socket_prefix() + hashlib.sha256(str(data).encode()).hexdigest()[:12]
    directory = Path(tempfile.gettempdir()) / name
    shutil.rmtree(directory, ignore_errors=True)
    try:
        directory.mkdir(mode=0o700)  # fails where another user was faster
    except FileExistsError as e:
        raise DirectoryError(f"{directory} belongs to someone else: remove it, or give another --data") from e
    return directory


def _socket_prefix() -> str:
    return f"qtopic-{os.getuid()}-"
