"""Test the warm-up that runs while Spark starts."""

from __future__ import annotations

import threading
import time

import pytest
from pyspark.sql import SparkSession

from queryable_app.ingest.warm_up import warm_up
from tests.support.kafka import KafkaForTests
from tests.support.waiting import eventually


def running() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("warm-up-")]


def wait_for_end() -> None:
    eventually("the warm-up has ended", lambda: not running(), 120)


def test_warm_up_prepares_kafkas_clients(spark: SparkSession, kafka: KafkaForTests) -> None:
    """The warm-up threads look the topic up, fetch a batch of it, and end."""
    kafka.create_topic("warmed", 1)

    warm_up(spark._jvm, kafka.bootstrap, {}, "warmed")

    assert "warm-up-kafka" in running()
    wait_for_end()


def test_warm_up_without_kafka_returns_at_once(
    spark: SparkSession, capfd: pytest.CaptureFixture[str]
) -> None:
    """Without a broker the warm-up returns at once and logs nothing; the supervisor reports it."""
    started = time.monotonic()
    warm_up(spark._jvm, "127.0.0.1:1", {}, "any")
    assert time.monotonic() - started < 20  # a lookup of the topic would take a minute

    wait_for_end()
    assert capfd.readouterr().err == ""
