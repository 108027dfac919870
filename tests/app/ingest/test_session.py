"""What the JVM is started with."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from queryable_app.ingest.jvm import jvm_process, prepare_environment, start_jvm
from queryable_app.platform.jars import JarsError


def test_the_jvm_does_not_learn_what_the_node_was_told() -> None:
    """Where its files with passwords are is nobody's business: no QT_ variable is left, the others are."""
    environ = {
        "QT_KAFKA_SECRET_DIR": "/etc/qt/kafka",
        "QT_NAME": "n",
        "PATH": "/bin",
    }

    prepare_environment(environ, Path("/java/bin/java"))

    assert not [name for name in environ if name.startswith("QT_")]
    assert (environ["PATH"], environ["JAVA_HOME"]) == ("/bin", "/java")


def test_a_spark_of_the_machine_is_not_used() -> None:
    """It would be another version than the one that pip brought."""
    environ = {"SPARK_HOME": "/opt/spark", "SPARK_CONF_DIR": "/etc/spark"}

    prepare_environment(environ, Path("/java/bin/java"))

    assert environ.keys().isdisjoint({"SPARK_HOME", "SPARK_CONF_DIR"})


def test_the_jvm_is_started_without_sparks_launch_scripts(spark: SparkSession) -> None:
    """Java runs the gateway server itself, without the library for machine learning, which takes half a second of every start."""
    command = Path(f"/proc/{jvm_process().pid}/cmdline").read_text().split("\0")

    assert "org.apache.spark.api.python.PythonGatewayServer" in command
    assert not [word for word in command if "SparkSubmit" in word or "spark-mllib_" in word]


def test_the_secret_of_the_gateway_does_not_stay_in_the_environment(spark: SparkSession) -> None:
    """Neither this process nor the JVM shows it to other processes of the machine."""
    environ = Path(f"/proc/{jvm_process().pid}/environ").read_text()

    assert "PYSPARK_GATEWAY_SECRET" not in os.environ
    assert "PYSPARK_GATEWAY_SECRET" not in environ


def test_the_compiler_of_every_query_is_not_signed(spark: SparkSession) -> None:
    """A signed class is checked by its digest whenever it is loaded, and no archive of classes takes it."""
    jvm: Any = spark._jvm

    assert jvm.java.lang.Class.forName("org.codehaus.janino.Parser").getSigners() is None


def test_a_jvm_that_does_not_start_is_a_sentence(tmp_path: Path) -> None:
    """An option that Java does not know ends it with a code, which the message names."""
    with pytest.raises(JarsError, match="exit code 1"):
        start_jvm([], "no-size", [], tmp_path)
