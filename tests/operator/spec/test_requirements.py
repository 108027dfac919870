"""What a node's containers ask of the machine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryable_operator.spec.quantity import quantity
from queryable_operator.spec.requirements import requirements
from tests.support.view import view


def test_the_answering_container_has_room_for_its_caches() -> None:
    """serve is given 150 MiB, its block cache and write buffers; and may use as much as clients can have under way."""
    assert requirements(view().raw, "serve") == {
        "requests": {"cpu": "100m", "memory": "342Mi"},
        "limits": {"memory": "662Mi"},
    }


@pytest.mark.parametrize(("heap", "memory"), [("512m", "1152Mi"), ("2g", "2688Mi"), ("600000k", "1226Mi")])
def test_the_reading_container_has_room_for_its_heap(heap: str, memory: str) -> None:
    """ingest is given its heap and what the JVM needs beside it, all of it from the start."""
    assert requirements(view(ingest={"driverMemory": heap}).raw, "ingest") == {
        "requests": {"cpu": "200m", "memory": memory},
        "limits": {"memory": memory},
    }


def test_what_the_resource_says_takes_their_place() -> None:
    """Of a container whose resources are given, nothing is added; the other one keeps its own."""
    given = {"requests": {"cpu": "2"}}
    said = view(podTemplate={"resources": {"serve": given}})

    assert requirements(said.raw, "serve") == given
    assert requirements(said.raw, "ingest") == requirements(view().raw, "ingest")


@given(st.integers(512, 100_000))
def test_the_limit_always_exceeds_the_heap(heap_mb: int) -> None:
    """No heap fills its container."""
    asked = requirements(view(ingest={"driverMemory": f"{heap_mb}m"}).raw, "ingest")

    assert quantity(asked["limits"]["memory"]) >= (heap_mb + 640) * 2**20
