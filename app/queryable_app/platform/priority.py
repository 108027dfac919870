"""Let a process run only on time that no other process wants.

Strategy: a scheduling policy and a nice value compare processes of one scheduling group only. Outside of containers Linux makes
a group of each session, so a process that leads its session, as those of `processes.py` do, gives its group the lowest
priority too.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Final

LOWEST: Final = 19  # as a nice value; 0 is that of others

_THIS_PROCESS: Final = 0
_ATTEMPTS: Final = 5
_PAUSE_SECONDS: Final = 0.1


def take_idle_time_only(pid: int = _THIS_PROCESS) -> None:
    """Give a process, and those that it starts afterwards, the lowest priority."""
    os.setpriority(os.PRIO_PROCESS, pid, LOWEST)
    if sys.platform == "linux":
        os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))
    if os.getsid(pid) == (pid or os.getpid()):  # otherwise the group has other processes
        _set_group(pid)


def _set_group(pid: int) -> None:
    for _ in range(_ATTEMPTS):
        try:
            Path(f"/proc/{pid or 'self'}/autogroup").write_text(str(LOWEST))
        except BlockingIOError:  # all users but root together may change one group in a tenth of a second
            time.sleep(_PAUSE_SECONDS)
        except OSError:  # there are no such groups here
            return
        else:
            return
