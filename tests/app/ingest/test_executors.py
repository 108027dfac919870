"""Test the settings of Spark with executors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryable_app.contract import REKEY_BLOCKS_PORT, REKEY_PORT
from queryable_app.ingest.executors import (
    executor_arguments,
    executor_options,
    executor_settings,
    missing_slots,
    pod_settings,
    shared_secret,
)


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


def test_pods_find_each_other_at_fixed_ports() -> None:
    """A NetworkPolicy can name the ports of the driver and of its executors, also with addresses of IPv6."""
    driver, arguments = pod_settings("fd00::1", "token"), executor_arguments("job.shop.svc", "fd00::2", 4)

    assert (driver["spark.driver.host"], driver["spark.driver.port"]) == ("[fd00::1]", str(REKEY_PORT))
    assert driver["spark.driver.blockManager.port"] == str(REKEY_BLOCKS_PORT)
    assert f"-Dspark.blockManager.port={REKEY_BLOCKS_PORT}" in executor_options()
    assert driver["spark.port.maxRetries"] == "0"
    assert arguments[arguments.index("--driver-url") + 1].endswith(f"@job.shop.svc:{REKEY_PORT}")
    assert arguments[arguments.index("--hostname") + 1] == "[fd00::2]"


def test_connections_between_pods_are_authenticated_and_encrypted() -> None:
    """Driver and executor agree on both, the secret is in no argument, and it does not disclose the token."""
    driver, options = pod_settings("10.0.0.1", "token"), executor_options()

    for name in ("spark.authenticate", "spark.network.crypto.enabled"):
        assert driver[name] == "true"
        assert f"-D{name}=true" in options
    assert f"-Dspark.network.crypto.cipher={driver['spark.network.crypto.cipher']}" in options
    secret = driver["spark.authenticate.secret"]
    assert secret == shared_secret("token") != shared_secret("other")
    assert not any(secret in text for text in (*options, *executor_arguments("host", "10.0.0.2", 4)))


def test_executor_that_starts_again_is_another_one() -> None:
    """Spark refuses an executor with the number of one that it may still know."""
    first, second = (executor_arguments("host", "10.0.0.2", 4) for _ in range(2))
    place = first.index("--executor-id") + 1

    assert first[place] != second[place]
    assert 0 < int(first[place]) < 2**31


@given(st.integers(0, 20), st.integers(1, 20))
def test_query_starts_with_a_slot_for_each_partition(slots: int, partitions: int) -> None:
    """With fewer slots Spark would leave partitions unread until a batch ends. The refusal names the field and what to do."""
    missing = missing_slots(slots, partitions)

    assert (missing is None) == (slots >= partitions)
    if missing is not None:
        assert f"{slots} slots" in missing
        assert "set spec.ingest.executors to 0" in missing
