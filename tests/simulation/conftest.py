"""Choose the seeds: `--simulation-seeds` or `SIMULATION_SEEDS`, a count or a range such as `500-999`."""

from __future__ import annotations

import os

import pytest

_SEEDS_DEFAULT = os.environ.get("SIMULATION_SEEDS", "40")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--simulation-seeds",
        default=_SEEDS_DEFAULT,
        help=f"the number of seeds, or a range of them: 7-7 is one alone (default {_SEEDS_DEFAULT})",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        # When all tests run, pytest reads this file too late to know the option.
        given = metafunc.config.getoption("--simulation-seeds", _SEEDS_DEFAULT)
        first, _, last = str(given).rpartition("-")
        seeds = range(int(first), int(last) + 1) if first else range(int(last))
        metafunc.parametrize("seed", seeds)
