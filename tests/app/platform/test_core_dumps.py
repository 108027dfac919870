"""Test that a process with secrets leaves no core dump, by ending one with SIGABRT."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

_ENDS = """
import resource
from queryable_app.platform.core_dumps import forbid_core_dumps
forbid_core_dumps()
import os, subprocess, sys
if sys.argv[1] == "child":
    subprocess.run([sys.executable, "-c", "import os, resource;"
        "print(resource.getrlimit(resource.RLIMIT_CORE), open('/proc/self/coredump_filter').read())"])
else:
    os.abort()
"""


def run(directory: Path, what: str) -> subprocess.Popen[str]:
    def allow() -> None:
        hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
        resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))

    return subprocess.Popen(
        [sys.executable, "-c", _ENDS, what],
        cwd=directory,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=allow,
    )


def test_process_that_aborts_leaves_no_core(tmp_path: Path) -> None:
    """The kernel reports no core dump, and there is no file, also where the limit of the machine allows one."""
    process = run(tmp_path, "abort")
    _, status = os.waitpid(process.pid, 0)
    assert os.WTERMSIG(status) == signal.SIGABRT
    assert not os.WCOREDUMP(status)
    assert list(tmp_path.iterdir()) == []
    process.returncode = -signal.SIGABRT
    assert process.stdout is not None
    process.stdout.close()


def test_children_inherit_it(tmp_path: Path) -> None:
    """A child has the limit of zero too, and a dump of it would have no memory in it."""
    said, _ = run(tmp_path, "child").communicate(timeout=60)
    assert said.split("\n")[0] == "(0, 0) 00000000"
