"""Provide a fake API server, its client, and one resource with its reconciler."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from queryable_operator.act.cluster import Cluster
from tests.support.fake_api import FakeApi, fake_api
from tests.support.operating import Operating, operating


@pytest.fixture
def operator() -> Iterator[Operating]:
    with operating() as operator:
        yield operator


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with fake_api() as api:
        yield api


@pytest.fixture
def cluster(api: FakeApi) -> Iterator[Cluster]:
    cluster = Cluster(api.configuration())
    yield cluster
    cluster.close()
