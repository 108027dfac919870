"""Runs a command that dies with whoever started it, also when that one is killed with -9.

    python -I -S tether.py PARENT_PID COMMAND ARGUMENT...

It asks the kernel for SIGKILL at the parent's death, then becomes the command. A launcher of its own, because the
alternative (`preexec_fn`) runs Python between fork and exec and can deadlock where there are threads. The kernel means
the *thread* that started the child: start children from the main thread only.
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
    if os.getppid() != parent:  # it died before the kernel was asked
        sys.exit("the parent process is gone")
    os.execvp(command[0], command)  # noqa: S606  (becoming the command is the point)


if __name__ == "__main__":
    main()
