"""What the JVM is started with."""

from __future__ import annotations

from pathlib import Path

from queryable_app.ingest.session import prepare_environment


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
