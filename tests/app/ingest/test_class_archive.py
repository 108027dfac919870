"""The archive of classes with which ingest's JVM starts."""

from __future__ import annotations

import os
from pathlib import Path

from pyspark.sql import SparkSession

from queryable_app.ingest.class_archive import archive_path
from queryable_app.ingest.session import jvm_process
from queryable_app.jars import cache_dir


def test_the_jvm_takes_the_archive(spark: SparkSession) -> None:
    """The JVM is silent about one that it does not take, and starts in twice the time."""
    mapped = Path(f"/proc/{jvm_process().pid}/maps").read_text()

    assert f"{cache_dir('')}/classes-" in mapped


def test_jars_that_were_installed_anew_have_another_archive(tmp_path: Path) -> None:
    """The JVM compares their ages, also at the same place."""
    jar = tmp_path / "a.jar"
    jar.touch()
    before = archive_path(tmp_path, [jar])

    os.utime(jar, (1, 1))

    assert archive_path(tmp_path, [jar]) != before
