"""Test the resource requirements of a node's containers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryable_operator.spec.quantity import quantity
from queryable_operator.spec.requirements import requirements
from tests.support.view import view


def test_serve_has_memory_for_its_caches() -> None:
    """serve requests 150 MiB, its block cache and write buffers; its limit also covers requests in progress."""
    assert requirements(view().raw, "serve") == {
        "requests": {"cpu": "100m", "memory": "470Mi"},
        "limits": {"memory": "790Mi"},
    }


@pytest.mark.parametrize(("heap", "memory"), [("512m", "1152Mi"), ("2g", "2688Mi"), ("600000k", "1226Mi")])
def test_ingest_has_memory_for_its_heap(heap: str, memory: str) -> None:
    """ingest requests its heap and what the JVM needs beside it."""
    assert requirements(view(ingest={"driverMemory": heap}).raw, "ingest") == {
        "requests": {"cpu": "200m", "memory": memory},
        "limits": {"memory": memory},
    }


def test_stated_requirements_replace_the_computed_ones() -> None:
    """The other container keeps its own."""
    given = {"requests": {"cpu": "2"}}
    stated = view(podTemplate={"resources": {"serve": given}})

    assert requirements(stated.raw, "serve") == given
    assert requirements(stated.raw, "ingest") == requirements(view().raw, "ingest")


@given(st.integers(512, 100_000))
def test_limit_exceeds_the_heap(heap_mb: int) -> None:
    """No heap fills its container."""
    computed = requirements(view(ingest={"driverMemory": f"{heap_mb}m"}).raw, "ingest")

    assert quantity(computed["limits"]["memory"]) >= (heap_mb + 640) * 2**20
