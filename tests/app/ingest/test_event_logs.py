"""Tests of what the JVM's libraries log."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql import SparkSession


def logged(spark: SparkSession, name: str, level: str, *arguments: Any) -> list[str]:
    """Return the lines on standard error after a library has logged under this name."""
    jvm: Any = spark._jvm
    output = jvm.java.io.ByteArrayOutputStream()
    own = jvm.java.lang.System.err
    jvm.java.lang.System.setErr(jvm.java.io.PrintStream(output, True))
    try:
        getattr(jvm.org.slf4j.LoggerFactory.getLogger(name), level)(*arguments)
    finally:
        jvm.java.lang.System.setErr(own)
    return str(output.toString()).splitlines()


def test_error_is_an_event(spark: SparkSession) -> None:
    """An error is one JSON line with the fields of the node's own events, whatever its text contains."""
    jvm: Any = spark._jvm
    cause = jvm.java.lang.IllegalStateException('no "disk"\n')

    (line,) = logged(spark, "org.apache.spark.storage.BlockManager", "error", "it\tfailed: ü", cause)

    event = json.loads(line)
    time = event.pop("time")
    assert event == {
        "level": "error",
        "event": "jvm",
        "logger": "BlockManager",
        "message": "it\tfailed: ü",
        "cause": 'no "disk"\n',
    }
    assert len(time) == len("2026-11-27T03:02:01.000+00:00")
    assert time.endswith("+00:00")


def test_arguments_are_in_the_message(spark: SparkSession) -> None:
    """A message has its arguments in it, and an error without a cause an empty one."""
    (line,) = logged(spark, "org.apache.hadoop.util.Shell", "error", "{} of {}", "one", "two")

    assert (json.loads(line)["message"], json.loads(line)["cause"]) == ("one of two", "")


@pytest.mark.parametrize(
    ("name", "level"),
    [
        ("org.apache.spark.storage.BlockManager", "warn"),
        ("org.apache.spark.storage.BlockManager", "info"),
        ("org.apache.spark.executor.Executor", "error"),
        ("org.apache.spark.TaskContextImpl", "error"),
        ("org.apache.kafka.clients.NetworkClient", "error"),
    ],
)
def test_other_levels_and_what_ingest_reports_itself_are_silent(
    spark: SparkSession, name: str, level: str
) -> None:
    """Warnings are not written, nor errors of the packages whose failures ingest reports."""
    assert logged(spark, name, level, "text") == []
