"""Distribute the tests over pytest-xdist's workers.

Strategy: a file's tests run on one worker, because they share fixtures. All of tests/cluster runs on one, because it shares the
cluster; it mostly waits, so it has a worker of its own beside one for each core. Slow tiers come first, so that the workers end
at about the same time.
"""

from __future__ import annotations

import os
from typing import Final

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

_ON_ONE_WORKER: Final = ("tests/cluster/", "tests/chart/")
_FIRST: Final = (
    *_ON_ONE_WORKER,
    "tests/integration/",
    "tests/operator/histories/",
    "tests/app/ingest/",
    "tests/app/serve/",
)
_WORKERS_MAX: Final = 5


class _ByFile(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    def _split_scope(self, nodeid: str) -> str:
        return "cluster" if nodeid.startswith(_ON_ONE_WORKER) else nodeid.partition("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer | None) -> _ByFile:
    return _ByFile(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return the number of workers for `--numprocesses auto`."""
    return min(_WORKERS_MAX, (os.cpu_count() or 1) + bool(os.environ.get("KUBECONFIG")))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _rank(item.nodeid))


def _rank(node_id: str) -> int:
    return next((rank for rank, prefix in enumerate(_FIRST) if node_id.startswith(prefix)), len(_FIRST))
