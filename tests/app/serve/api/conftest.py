"""Provide a node with a few rows, and an HTTP client of the node that a file tests."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.support.served import Served, served


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Run a node with the key `a` and the deleted key `gone`, in three partitions."""
    with served(
        tmp_path_factory.mktemp("keys"), partitions=3, settings={"body_bytes_max": 1_100_000}
    ) as running:
        running.put(b"a", b'{"n": 1}')
        running.put(b"gone", b"1")
        running.put(b"gone", None)
        yield running


@pytest.fixture(scope="module")
def http(node: Served) -> Iterator[httpx.Client]:
    """Connect to the node of the file."""
    with node.client() as client:
        yield client
