"""Close what a failed test leaves open, so that no later test fails for it.

The collection of an open socket is a warning, and a warning is a failure. A failed test's traceback keeps its sockets alive,
so that without this they would be collected during a later test and fail it.
"""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Generator

import pytest

_failed: set[str] = set()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _failed.add(report.nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    result = yield
    if item.nodeid in _failed:
        for name in ("last_type", "last_value", "last_traceback", "last_exc"):  # for debuggers, after a run
            if hasattr(sys, name):
                delattr(sys, name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
    return result
