"""Which seeds are run: `--simulation-seeds` or `SIMULATION_SEEDS`, a count or a range such as `500-999`."""

from __future__ import annotations

import os

import pytest

_SEEDS_USUALLY = os.environ.get("SIMULATION_SEEDS", "40")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--simulation-seeds",
        default=_SEEDS_USUALLY,
        help=f"how many seeds are simulated, or which: 7-7 is one alone (usually {_SEEDS_USUALLY})",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        # Where all tests are run, the option is not known: pytest has read this file too late for it.
        given = metafunc.config.getoption("--simulation-seeds", _SEEDS_USUALLY)
        first, _, last = str(given).rpartition("-")
        seeds = range(int(first), int(last) + 1) if first else range(int(last))
        metafunc.parametrize("seed", seeds)
