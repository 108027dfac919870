"""Test that the garbage collector leaves long-lived objects alone: in a process of its own, whose objects are its own."""

from __future__ import annotations

import subprocess
import sys


def _outcome(code: str) -> str:
    begin = "import gc\nfrom queryable_app.platform.collector import long_lived\n"
    return subprocess.run(
        [sys.executable, "-c", begin + code], capture_output=True, text=True, check=True
    ).stdout


def test_the_collector_does_not_run_during_imports() -> None:
    """The collector is off inside the block, and on again behind it."""
    assert _outcome("with long_lived(): print(gc.isenabled())\nprint(gc.isenabled())") == "False\nTrue\n"


def test_the_collector_does_not_look_at_what_was_imported() -> None:
    """Objects from before and inside the block are no longer among those that the collector looks at."""
    create = "before = [[] for _ in range(5000)]\nwith long_lived(): inside = [[] for _ in range(5000)]\n"
    code = create + "print(len(gc.get_objects()) < 5000)"
    assert _outcome(code) == "True\n"


def test_the_collector_runs_again_after_an_import_that_fails() -> None:
    """An error inside the block leaves the collector on."""
    code = "try:\n    with long_lived(): import no_such_module\nexcept ImportError: print(gc.isenabled())"
    assert _outcome(code) == "True\n"
