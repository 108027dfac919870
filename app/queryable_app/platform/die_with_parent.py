"""Run a command that dies with the process that started it, also if that one is killed with -9.

    python -I -S die_with_parent.py PARENT_PID COMMAND ARGUMENT...

It asks the kernel for SIGKILL at the parent's death, then becomes the command. It is a launcher of its own because the
alternative, `preexec_fn`, runs Python between fork and exec and can deadlock if there are threads. The kernel counts the
*thread* that started the child as its parent: start children from the main thread only.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the call
        sys.exit("the parent process is gone")
    os.execvp(command[0], command)  # noqa: S606  (becoming the command is the point)


if __name__ == "__main__":
    main()
