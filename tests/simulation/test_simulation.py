"""Test that the guarantees hold in simulated worlds with all kinds of faults.

Each seed is a world: nodes, a topic, faults and readers follow from the number. The checks of every answer and every moment
are in `checks`, `readers` and `world`; `run` checks that a world converges once the faults end.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.run import run
from tests.simulation.views import Kind

_TRACE_LINES = 60
_FEATURE_SEEDS = range(7000, 7008)
_ROOT = Path(__file__).parents[2]


def test_world_keeps_its_guarantees(seed: int) -> None:
    """A world has no wrong value, no needless failure, no forwarding loop, no lost replica, no lower epoch, and it converges."""
    _keeps_its_guarantees(seed)


@pytest.mark.parametrize("number", _FEATURE_SEEDS)
def test_world_with_indexes_history_or_changes_keeps_its_guarantees(number: int) -> None:
    """A view of latest values answers by its indexes, for moments and with changes as the log says."""
    _keeps_its_guarantees(number, "latest")


def _keeps_its_guarantees(seed: int, kind: Kind | None = None) -> None:
    outcome = run(seed, kind)
    if outcome.violation is not None:
        trace = "\n".join(outcome.trace[-_TRACE_LINES:])
        pytest.fail(
            f"{trace}\n\nseed {seed}, {kind or 'any kind'}: {outcome.violation}\n"
            f"again: pytest tests/simulation {f'-k {seed}' if kind else f'--simulation-seeds {seed}-{seed}'}",
            pytrace=False,
        )


def test_seed_gives_the_same_run() -> None:
    """A seed gives the same trace to the letter, in this process and in another one with other hashes."""
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
