"""Let a process yield the processor to others.

Strategy: a nice value compares processes of one scheduling group only. Outside of containers Linux makes a group of each
session, so a process that leads its session, as those of `processes.py` do, gives its group the value too. Each container is a
group of its own, and its values have no effect beyond it: there the requests for CPU decide.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Final

LOWEST: Final = 19

_THIS_PROCESS: Final = 0
_ATTEMPTS: Final = 5
_PAUSE_SECONDS: Final = 0.1


def yield_processor(nice: int, pid: int = _THIS_PROCESS) -> None:
    """Give a process, and those that it starts afterwards, this nice value: 0 is that of others, 19 the lowest priority."""
    os.setpriority(os.PRIO_PROCESS, pid, nice)
    if os.getsid(pid) != (pid or os.getpid()):
        return  # the group has other processes
    for _ in range(_ATTEMPTS):
        try:
            Path(f"/proc/{pid or 'self'}/autogroup").write_text(str(nice))
        except BlockingIOError:  # all users but root together may change one group in a tenth of a second
            time.sleep(_PAUSE_SECONDS)
        except OSError:  # there are no such groups here
            return
        else:
            return


def take_idle_time_only(pid: int = _THIS_PROCESS) -> None:
    """Run a process, and those that it starts afterwards, only on time that no other process wants."""
    yield_processor(LOWEST, pid)
    if sys.platform == "linux":
        os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))
