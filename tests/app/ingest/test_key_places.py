"""Test what executors of a rekey job remember of record keys, with the real classes in Spark's JVM."""

from __future__ import annotations

from typing import Any

import pytest
from py4j.java_gateway import get_field
from pyspark.sql import SparkSession

PARTITIONS = 3
KEY = b"user"


class Executors:
    """Let executors take turns with one source partition, as `RekeyRun` does."""

    def __init__(self, jvm: Any) -> None:
        self._copy = jvm.org.apache.commons.lang3.SerializationUtils.clone
        places = jvm.io.queryabletopics.KeyPlaces(1 << 20, 0)
        self._driver = jvm.io.queryabletopics.RekeySource(PARTITIONS, 0, 0, places)
        self._given_back: dict[str, Any] = {}

    def writes(self, executor: str, partition: int) -> None:
        source = self._borrow(executor)
        get_field(source, "places").put(KEY, partition, 5)
        self._give_back(executor, source)

    def knows(self, executor: str) -> int | None:
        """Return in which partition the executor that is the next owner knows the key, or None."""
        source = self._borrow(executor)
        place = get_field(source, "places").of(KEY)
        self._give_back(executor, source)
        return None if place is None else int(get_field(place, "partition"))

    def _borrow(self, executor: str) -> Any:
        self._driver.handOver()
        source = self._copy(self._driver)
        source.recall(self._given_back.pop(executor, None))
        return source

    def _give_back(self, executor: str, source: Any) -> None:
        source.handOver()
        self._driver = self._copy(source)
        self._given_back[executor] = source


@pytest.fixture
def executors(spark: SparkSession) -> Executors:
    return Executors(spark._jvm)


def test_executor_that_takes_a_partition_back_at_once_remembers(executors: Executors) -> None:
    """An executor that is the next owner again knows where it has written a key."""
    executors.writes("first", 2)
    assert executors.knows("first") == 2


def test_executor_that_takes_over_knows_nothing(executors: Executors) -> None:
    """An executor does not get what another one remembers."""
    executors.writes("first", 2)
    assert executors.knows("second") is None


def test_what_an_executor_remembers_ends_with_another_owner(executors: Executors) -> None:
    """After the turn of another executor, which may have written the key elsewhere, nothing is remembered of before."""
    executors.writes("first", 2)
    executors.writes("second", 1)
    assert executors.knows("first") is None


def test_first_owner_knows_that_no_key_was_written(executors: Executors) -> None:
    """In a run from the beginning, a key that the first executor has not met is in no partition."""
    assert executors.knows("first") == -1
