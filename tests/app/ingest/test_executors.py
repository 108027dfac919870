"""Test the settings of Spark with executors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryable_app.ingest.executors import executor_settings


@given(st.integers(1, 50), st.integers(1, 200))
def test_executors_have_a_slot_for_each_task(executors: int, slots: int) -> None:
    """Real-Time Mode occupies a slot for each partition during a batch, so together the executors have all of them."""
    master = executor_settings(executors, slots, "512m", [], [])["spark.master"]

    found = re.fullmatch(r"local-cluster\[(\d+),(\d+),512\]", master)
    assert found is not None
    assert int(found[1]) == executors
    assert executors * int(found[2]) >= slots


@pytest.mark.parametrize(("heap", "mib"), [("512m", 512), ("2g", 2048), ("1G", 1024), ("524288k", 512)])
def test_heap_of_an_executor_fits_its_worker(heap: str, mib: int) -> None:
    """Spark's workers measure memory in MiB, whatever unit the heap has."""
    settings = executor_settings(2, 2, heap, [], [])

    assert settings["spark.master"] == f"local-cluster[2,1,{mib}]"
    assert settings["spark.executor.memory"] == heap


def test_each_run_has_a_secret_of_its_own() -> None:
    """Other processes of the machine, and other runs, cannot connect to the driver."""
    first, second = (executor_settings(1, 1, "512m", [Path("/a.jar")], []) for _ in range(2))

    assert first["spark.authenticate"] == "true"
    assert first["spark.authenticate.secret"] != second["spark.authenticate.secret"]
