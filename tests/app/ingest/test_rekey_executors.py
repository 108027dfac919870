"""Test the executors' part of a rekey job, without a driver."""

from __future__ import annotations

from typing import Any

from pyspark import java_gateway
from pyspark.sql import SparkSession

callbacks: Any = java_gateway  # which is not typed


class Driver:
    """Stand for the driver, as Spark gives it to an executor's plugin."""

    class Java:
        implements = ("org.apache.spark.api.plugin.PluginContext",)

    def __init__(self) -> None:
        self.messages: list[Any] = []

    def send(self, message: Any) -> None:
        self.messages.append(message)


def test_executor_finds_the_driver_before_its_first_task(spark: SparkSession) -> None:
    """An executor sends a message when it starts. Spark looks for the driver then, where the end of no task interrupts it."""
    gateway: Any = spark.sparkContext._gateway
    callbacks.ensure_callback_server_started(gateway)
    executor = getattr(gateway.jvm.io.queryabletopics, "RekeyExecutors$Executor")()
    driver = Driver()
    try:
        executor.init(driver, gateway.jvm.java.util.HashMap())
        assert len(driver.messages) == 1
    finally:
        executor.shutdown()
