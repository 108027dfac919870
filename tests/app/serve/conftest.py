"""Provide nodes that hydrate from one another."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.trio import Trio


@pytest.fixture
def trio(tmp_path: Path) -> Iterator[Trio]:
    with Trio(tmp_path) as started:
        yield started


@pytest.fixture
def slow_trio(tmp_path: Path) -> Iterator[Trio]:
    """A hydration takes two to three seconds, so that a test can act during it."""
    with Trio(tmp_path, mb_per_second=2) as started:
        started.fill(0)
        yield started
