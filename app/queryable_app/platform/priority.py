"""Let a process run only on time that no other process wants, until it has to end.

Strategy: a scheduling policy and a nice value compare processes of one scheduling group only. Outside of containers Linux makes
a group of each session, so a process that leads its session, as those of `processes.py` do, gives its group the lowest
priority too.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

LOWEST: Final = 19  # as a nice value

_USUAL: Final = 0
_THIS_PROCESS: Final = 0
_ATTEMPTS: Final = 5
_PAUSE_SECONDS: Final = 0.1


def take_idle_time_only(pid: int = _THIS_PROCESS) -> None:
    """Give a process, and those that it starts afterwards, the lowest priority."""
    os.setpriority(os.PRIO_PROCESS, pid, LOWEST)
    if sys.platform == "linux":
        os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))
    if _leads_its_session(pid):  # otherwise the group has other processes
        _set_group(pid, LOWEST)


def take_usual_time(pid: int = _THIS_PROCESS) -> None:
    """Give a process with the lowest priority its usual share of time again, as far as the system permits.

    A process that has to end needs some time for it, and on a busy machine it would wait minutes for idle time.
    """
    if sys.platform == "linux":
        for thread in _threads(pid):
            with contextlib.suppress(PermissionError, ProcessLookupError):  # for root, or with RLIMIT_NICE
                os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))
                os.setpriority(os.PRIO_PROCESS, thread, _USUAL)
    with contextlib.suppress(ProcessLookupError):
        if _leads_its_session(pid):
            _set_group(pid, _USUAL)


def _threads(pid: int) -> Sequence[int]:
    try:
        return [int(entry.name) for entry in Path(f"/proc/{pid or 'self'}/task").iterdir()]
    except OSError:  # the process is no more
        return []


def _leads_its_session(pid: int) -> bool:
    return os.getsid(pid) == (pid or os.getpid())


def _set_group(pid: int, nice: int) -> None:
    for _ in range(_ATTEMPTS):
        try:
            Path(f"/proc/{pid or 'self'}/autogroup").write_text(str(nice))
        except BlockingIOError:  # all users but root together may change one group in a tenth of a second
            time.sleep(_PAUSE_SECONDS)
        except OSError:  # there are no such groups here
            return
        else:
            return
