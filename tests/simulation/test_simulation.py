"""Worlds in which everything goes wrong, and nothing that is promised may break.

Each seed is a world: nodes, a topic, faults and readers that all follow from the number. What is held, of every answer and at
every moment, is in `checks`, `readers` and `world`; that everything converges once the faults end is in `run`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.run import run

_TRACE_LINES = 60
_ROOT = Path(__file__).parents[2]


def test_a_world_keeps_its_promises(seed: int) -> None:
    """No wrong value, no needless failure, no loop, no lost copy, no epoch that goes back, and it all ends well."""
    outcome = run(seed)
    if outcome.wrong is not None:
        trace = "\n".join(outcome.trace[-_TRACE_LINES:])
        pytest.fail(
            f"{trace}\n\nseed {seed}: {outcome.wrong}\n"
            f"again: pytest tests/simulation --simulation-seeds {seed}-{seed}",
            pytrace=False,
        )


def test_a_seed_is_one_run() -> None:
    """The same seed gives the same trace to the letter, in this process and in another one with other hashes."""
    script = "from tests.simulation.run import run; print(run(6003).digest)"
    elsewhere = subprocess.run(
        [sys.executable, "-c", script],
        cwd=_ROOT,
        env={**os.environ, "PYTHONHASHSEED": "77"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run(6003).digest == run(6003).digest == elsewhere.stdout.strip()
