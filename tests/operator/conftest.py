"""One resource and its rounds, for the tests of what they do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.operating import Operating, operating


@pytest.fixture
def operator() -> Iterator[Operating]:
    with operating() as operator:
        yield operator
