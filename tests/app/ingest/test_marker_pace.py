"""Test when a run of the rekey job writes its markers, with the real class in Spark's JVM."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

MS = 1_000_000
START = 7_000 * MS


@pytest.fixture
def pace(spark: SparkSession) -> Any:
    jvm: Any = spark._jvm
    return jvm.io.queryabletopics.MarkerPace(START)


def markers(pace: Any, rows_at_ms: list[int]) -> list[int]:
    """Return the milliseconds at which markers are written while rows come, as the thread of a run decides it."""
    written, now, left = [], START, list(rows_at_ms)
    while left:
        now = max(now, START + left[0] * MS)
        moved = True
        while True:
            left = [each for each in left if START + each * MS > now]
            wait = pace.waitNanos(now, moved)
            if not wait:
                break
            now += wait
            moved = any(START + each * MS <= now for each in left)
        pace.written(now)
        written.append((now - START) // MS)
    return written


def test_marker_after_a_rest_goes_at_once(pace: Any) -> None:
    """The markers of a record that comes after a rest of 50 ms or more wait for nothing."""
    assert markers(pace, [0, 50, 300]) == [0, 50, 300]


def test_markers_keep_their_pace_while_rows_come(pace: Any) -> None:
    """While rows come without a pause, markers are written every 50 ms, and after the last row once more."""
    assert markers(pace, list(range(121))) == [0, 50, 100, 123]


def test_last_markers_of_a_burst_do_not_wait_for_the_pace(pace: Any) -> None:
    """The markers after the last row of a burst are written within a few milliseconds, not after 50."""
    assert markers(pace, [0, 1, 2, 3, 4]) == [0, 7]
