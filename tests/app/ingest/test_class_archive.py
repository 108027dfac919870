"""The archive of classes with which ingest's JVM starts."""

from __future__ import annotations

import os
from pathlib import Path

from pyspark.sql import SparkSession

from queryable_app.ingest.class_archive import archive_path
from queryable_app.ingest.jvm import class_path, jvm_process


def test_the_jvm_takes_the_archive(spark: SparkSession, cache: Path) -> None:
    """The JVM is silent about one that it does not take, and starts in twice the time."""
    mapped = Path(f"/proc/{jvm_process().pid}/maps").read_text()

    assert f"{cache}/classes-" in mapped


def test_the_archive_has_what_only_an_answer_of_kafka_needs(cache: Path) -> None:
    """Training has no broker: these classes are loaded by their names."""
    archive = archive_path(cache, class_path(cache))

    assert b"org/apache/kafka/common/message/FetchResponseDataJsonConverter" in archive.read_bytes()


def test_jars_that_were_installed_anew_have_another_archive(tmp_path: Path) -> None:
    """The JVM compares their ages, also at the same place."""
    jar = tmp_path / "a.jar"
    jar.touch()
    before = archive_path(tmp_path, [jar])

    os.utime(jar, (1, 1))

    assert archive_path(tmp_path, [jar]) != before
