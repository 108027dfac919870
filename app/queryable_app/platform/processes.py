"""Run child processes, each in its own session. They die with this process, and are stopped with all that they started."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Final

from queryable_app.platform import die_with_parent

# Below Linux's range for outgoing connections, so that a killed process finds its port free again.
_PORTS: Final = range(20_000, 32_000)
_POLL_SECONDS: Final = 0.02
_RESTART_SECONDS: Final = 0.2
_RESTART_SECONDS_MAX: Final = 15.0
_LIVED_LONG_SECONDS: Final = 30.0


class Process:
    """One running command, with a process group of its own, so that its children are stopped with it."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path | None,
        environ: Mapping[str, str] | None = None,
        inherited: Sequence[int] = (),
    ) -> None:
        """Start the command. Without a `log` it writes where this process writes."""
        launcher = [sys.executable, "-I", "-S", die_with_parent.__file__, str(os.getpid())]
        with _appended(log) as out:
            self._popen = subprocess.Popen(
                [*launcher, *command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out and subprocess.STDOUT,
                env=dict(environ) if environ is not None else None,
                start_new_session=True,
                pass_fds=tuple(inherited),
            )
        self.pid = self._popen.pid
        self.started_at = time.monotonic()
        self._killed = False

    @property
    def exit_code(self) -> int | None:
        """None while the process runs; negative: the signal that ended it."""
        return self._popen.poll()

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process and the rest of its group with -9, also if the process itself has ended."""
        if not self._killed:  # once: later the number may be another group's
            self._signal(signal.SIGKILL)
            self._popen.wait()
            self._killed = True

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)


def stop(processes: Iterable[Process], seconds: float) -> None:
    """Terminate all processes at once, and kill those that do not end in time."""
    stopping = list(processes)
    for process in stopping:
        if process.exit_code is None:
            process.terminate()
    deadline = time.monotonic() + seconds
    while any(p.exit_code is None for p in stopping) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    for process in stopping:
        process.kill()


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Return whether a server could listen at this port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


class SupervisedProcess:
    """Restart a process when it ends. The delay doubles with each crash until the process has lived long."""

    def __init__(self, name: str, start: Callable[[], Process], process: Process) -> None:
        self.name = name
        self.process = process
        self.crashes = 0
        """How often the process has ended since it last lived long."""
        self._start = start
        self._restart_at: float | None = None

    @property
    def waits(self) -> bool:
        """Whether the process has ended and is not started again yet."""
        return self._restart_at is not None

    def supervise(self) -> str | None:
        """Restart the process if it is due, and return what has happened since the last call as a line, or None."""
        now = time.monotonic()
        if self._restart_at is not None:
            if now < self._restart_at:
                return None
            self._restart_at = None
            self.process = self._start()
            return f"{self.name} is started again, as process {self.process.pid}"
        code = self.process.exit_code
        if code is None:
            return None
        self.process.kill()  # its children must not run beside the next process
        self.crashes = 1 if now - self.process.started_at > _LIVED_LONG_SECONDS else self.crashes + 1
        delay = min(_RESTART_SECONDS * 2 ** (self.crashes - 1), _RESTART_SECONDS_MAX)
        self._restart_at = now + delay
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return f"{self.name} {how} and is started again in {delay:.1f} s"


@contextlib.contextmanager
def _appended(log: Path | None) -> Iterator[IO[bytes] | None]:
    if log is None:
        yield None
        return
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        yield out


def free_ports(count: int) -> list[int]:
    """Return different ports at which a server could listen now."""
    chosen: list[int] = []
    while len(chosen) < count:
        port = random.choice(_PORTS)  # noqa: S311  (not a secret)
        if port not in chosen and is_free(port):
            chosen.append(port)
    return chosen
