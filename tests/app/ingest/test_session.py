"""Test the options and the environment of the JVM."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from queryable_app.ingest.gateway import connect, jvm_process
from queryable_app.ingest.jvm import prepare_environment, start_jvm
from queryable_app.ingest.launch import Profile, java_options
from queryable_app.platform.jars import JarsError, find_java


def test_jvm_gets_no_variable_of_the_node() -> None:
    """The JVM's environment has no QT_ variable, since they name password files, and has the others."""
    environ = {
        "QT_KAFKA_SECRET_DIR": "/etc/qt/kafka",
        "QT_NAME": "n",
        "PATH": "/bin",
    }

    prepare_environment(environ, Path("/java/bin/java"))

    assert not [name for name in environ if name.startswith("QT_")]
    assert (environ["PATH"], environ["JAVA_HOME"]) == ("/bin", "/java")


def test_spark_home_is_ignored() -> None:
    """Ingest ignores SPARK_HOME and uses the Spark that pip installed."""
    environ = {"SPARK_HOME": "/opt/spark", "SPARK_CONF_DIR": "/etc/spark"}

    prepare_environment(environ, Path("/java/bin/java"))

    assert environ.keys().isdisjoint({"SPARK_HOME", "SPARK_CONF_DIR"})


def test_jvm_starts_without_sparks_launch_scripts(spark: SparkSession) -> None:
    """Java runs the gateway server directly, without the machine learning library, which saves half a second per start."""
    command = Path(f"/proc/{jvm_process().pid}/cmdline").read_text().split("\0")

    assert "org.apache.spark.api.python.PythonGatewayServer" in command
    assert not [word for word in command if "SparkSubmit" in word or "spark-mllib_" in word]


def test_functions_need_no_jar_that_is_left_out(spark: SparkSession) -> None:
    """Each function of Spark's SQL loads with the types of its methods, without the jars that a view does not need."""
    jvm: Any = spark._jvm
    registry = jvm.org.apache.spark.sql.catalyst.analysis.FunctionRegistry.builtin()
    names = registry.listFunction().iterator()
    loaded = set()
    while names.hasNext():
        name = registry.lookupFunction(names.next()).get().getClassName()
        if name not in loaded:
            jvm.java.lang.Class.forName(name).getDeclaredMethods()
            loaded.add(name)

    assert len(loaded) > 400


def test_data_sources_need_no_jar_that_is_left_out(spark: SparkSession) -> None:
    """Each data source that Spark finds is made without the jars that a view does not need: Spark makes all to find Kafka's."""
    jvm: Any = spark._jvm
    kind = jvm.java.lang.Class.forName("org.apache.spark.sql.sources.DataSourceRegister")

    sources, found = jvm.java.util.ServiceLoader.load(kind).iterator(), set()
    while sources.hasNext():
        found.add(sources.next().shortName())

    assert {"kafka", "json", "parquet", "orc"} <= found


def test_calls_of_the_jvm_need_no_numpy(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """The arguments of a call are looked at without numpy, which PySpark would import for the first one."""
    gateway: Any = SparkContext._gateway
    monkeypatch.setitem(sys.modules, "numpy", None)  # an import of it raises

    assert not [each for each in gateway._gateway_client.converters if each.can_convert("text")]


def test_options_suit_java_and_are_silent(cache: Path, tmp_path: Path) -> None:
    """Java takes the options of a node, among them the compilers' directives, and says nothing about them."""
    options = java_options(Profile(2, "64m", tmp_path, cache))

    done = subprocess.run([find_java(), *options, "-version"], capture_output=True, text=True, timeout=120)

    assert (done.returncode, done.stdout) == (0, "")
    assert "directive" not in done.stderr


def test_methods_that_are_compiled_by_themselves_exist(spark: SparkSession) -> None:
    """Each method that the compilers' directives keep out of its callers exists in this version of Spark and of the writer."""
    jvm: Any = spark._jvm
    text = resources.files("queryable_app.ingest").joinpath("compiler_directives.json").read_text()
    named = re.findall(r'"-([\w/$]+)\.(\w+)"', text)

    assert named
    for name, method in named:
        methods = jvm.java.lang.Class.forName(name.replace("/", ".")).getDeclaredMethods()
        assert method in {each.getName() for each in methods}


def test_gateway_secret_leaves_the_environment(spark: SparkSession) -> None:
    """Neither this process nor the JVM shows the gateway's secret to other processes of the machine."""
    environ = Path(f"/proc/{jvm_process().pid}/environ").read_text()

    assert "PYSPARK_GATEWAY_SECRET" not in os.environ
    assert "PYSPARK_GATEWAY_SECRET" not in environ


def test_compiler_jar_has_no_signature(spark: SparkSession) -> None:
    """The compiler's jar has no signature, since signed classes are checked at each load and are in no class archive."""
    jvm: Any = spark._jvm

    assert jvm.java.lang.Class.forName("org.codehaus.janino.Parser").getSigners() is None


@pytest.mark.parametrize(
    "name",
    [
        "org.apache.spark.sql.kafka010.KafkaRecordToRowConverter",
        "org.apache.kafka.common.metrics.Sensor$RecordingLevel",
    ],
)
def test_class_of_the_writers_jar_replaces_a_librarys(spark: SparkSession, name: str) -> None:
    """The JVM takes the class of the row writer's jar, not that of Spark's connector or of Kafka's client."""
    jvm: Any = spark._jvm
    loaded = jvm.java.lang.Class.forName(name)

    assert "row-writer-" in loaded.getProtectionDomain().getCodeSource().getLocation().toString()


def test_jvm_that_does_not_start_is_named(tmp_path: Path) -> None:
    """A JVM that rejects an option ends with a code, which the message names."""
    with pytest.raises(JarsError, match="exit code 1"):
        connect(start_jvm([], "no-size", [], tmp_path, {}))
