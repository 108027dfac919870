"""Tests of the metrics of Kafka's clients in ingest's JVM: none are recorded, unless the user configures a level."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import IllegalArgumentException
from pyspark.sql import SparkSession

SENSOR = "org.apache.kafka.common.metrics.Sensor"
LEVEL = f"{SENSOR}$RecordingLevel"
LEVELS = ["INFO", "DEBUG", "TRACE"]


def replacement(spark: SparkSession) -> Any:
    """Return the class that the JVM takes."""
    jvm: Any = spark._jvm
    return jvm.java.lang.Class.forName(LEVEL)


def kafkas_own(spark: SparkSession) -> Any:
    """Return the class that Kafka's jar has, from a loader that knows nothing else."""
    jvm: Any = spark._jvm
    sensor = jvm.java.lang.Class.forName(SENSOR)
    jars = spark._sc._gateway.new_array(jvm.java.net.URL, 1)  # type: ignore[union-attr]
    jars[0] = sensor.getProtectionDomain().getCodeSource().getLocation()
    loader = jvm.java.net.URLClassLoader.newInstance(jars, None)
    return loader.loadClass(LEVEL)


def levels(spark: SparkSession) -> dict[str, Any]:
    return {level.name(): level for level in replacement(spark).getEnumConstants()}


def recorded(spark: SparkSession, configured: str) -> list[str]:
    """Return the levels of the metrics that a client with this configured level records."""
    return [name for name, level in levels(spark).items() if level.shouldRecord(LEVELS.index(configured))]


def public_members(loaded: Any) -> set[str]:
    members = [*loaded.getDeclaredMethods(), *loaded.getDeclaredFields()]
    shown = {member.toGenericString() for member in members}
    return {text for text in shown if text.startswith("public")}


def test_class_has_all_members_of_kafkas_own(spark: SparkSession) -> None:
    """Whatever Kafka's client calls or reads is there, also after an upgrade of the client."""
    assert public_members(replacement(spark)) == public_members(kafkas_own(spark))


def test_client_at_the_default_level_records_nothing(spark: SparkSession) -> None:
    """At INFO, which is Kafka's default, a consumer's fetches leave no metrics."""
    jvm: Any = spark._jvm
    sensor = jvm.org.apache.kafka.common.metrics.Metrics().sensor("fetches")

    assert not sensor.shouldRecord()
    assert recorded(spark, "INFO") == []


@pytest.mark.parametrize(("configured", "metrics"), [("DEBUG", ["INFO", "DEBUG"]), ("TRACE", LEVELS)])
def test_client_at_another_level_records_as_kafka_does(
    spark: SparkSession, configured: str, metrics: list[str]
) -> None:
    """A user who configures `metrics.recording.level` gets the metrics of that level and of those before it."""
    assert recorded(spark, configured) == metrics


@pytest.mark.parametrize("number", [0, 1, 2])
def test_levels_have_the_numbers_and_names_of_kafka(spark: SparkSession, number: int) -> None:
    """The configured text finds its level, in either case, and the level's number finds it too."""
    level = levels(spark)[LEVELS[number]]

    assert level.forId(number).equals(level)
    assert level.forName(LEVELS[number].lower()).equals(level)


@pytest.mark.parametrize("number", [-1, 3])
def test_unknown_level_is_refused(spark: SparkSession, number: int) -> None:
    """A number that is no level's raises an exception."""
    with pytest.raises(IllegalArgumentException, match=f"no recording level {number}"):
        levels(spark)["INFO"].forId(number)
