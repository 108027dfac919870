"""Tests of the short files that stand in front of Spark's and Hadoop's long ones."""

from __future__ import annotations

import json
import random
from bisect import bisect_right
from typing import Any

import pytest
from pyspark.sql import SparkSession

from queryable_app.ingest.small_resources import REBASED, small_resources
from queryable_app.ingest.writer_jar import rebased_files
from queryable_app.platform.jars import pyspark_jars


def rebased() -> dict[str, bytes]:
    return rebased_files(pyspark_jars())


@pytest.mark.parametrize("name", REBASED)
def test_old_calendars_keep_utc_and_the_last_switch_of_all(name: str) -> None:
    """The record of UTC tells the same as Spark's own, and Spark looks into records until the same time as before."""
    records = json.loads(rebased()[name])
    (whole,) = [record for record in records if record["tz"] == "UTC"]

    (utc,) = json.loads(small_resources(rebased())[name])

    switches = len(whole["switches"])
    assert utc["tz"] == "UTC"
    assert utc["switches"][:switches] == whole["switches"]
    assert utc["diffs"][:switches] == whole["diffs"]
    assert set(utc["diffs"][switches - 1 :]) == {0}
    assert utc["switches"][-1] == max(record["switches"][-1] for record in records)


def test_jvm_finds_the_short_files_first(spark: SparkSession) -> None:
    """The JVM reads the writer's files in place of its libraries' ones."""
    jvm: Any = spark._jvm
    loader = jvm.java.lang.ClassLoader.getSystemClassLoader()

    found = {name: loader.getResource(name).toString() for name in small_resources(rebased())}

    assert [name for name, place in found.items() if "/row-writer-" not in place] == []


def by_record(record: dict[str, Any], micros: int) -> int:
    """Return a time of the other calendar, by one of the records of Spark's own file."""
    place = bisect_right(record["switches"], micros // 1_000_000) - 1
    return int(micros + record["diffs"][place] * 1_000_000)


@pytest.mark.parametrize("zone", ["UTC", "America/Los_Angeles", "Europe/Amsterdam", "Asia/Kathmandu"])
def test_old_times_are_those_of_sparks_own_records(spark: SparkSession, zone: str) -> None:
    """Spark converts times before 1900 in every zone as its own records say, with the record of UTC alone."""
    jvm: Any = spark._jvm
    rebase = jvm.org.apache.spark.sql.catalyst.util.RebaseDateTime
    to_julian, to_gregorian = (
        next(record for record in json.loads(rebased()[name]) if record["tz"] == zone) for name in REBASED
    )
    chosen = random.Random(1)
    # From the year 1000 to 1950, in microseconds.
    for micros in [chosen.randrange(-30_600_000_000_000_000, -630_000_000_000_000) for _ in range(50)]:
        assert rebase.rebaseGregorianToJulianMicros(zone, micros) == by_record(to_julian, micros)
        assert rebase.rebaseJulianToGregorianMicros(zone, micros) == by_record(to_gregorian, micros)
