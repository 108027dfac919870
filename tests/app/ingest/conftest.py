"""Provide one Spark session for all of these tests, since a JVM takes seconds to start."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from queryable_app.ingest.gateway import jvm_process
from queryable_app.ingest.launch import FIRST_COMPILER_ONLY, Profile
from queryable_app.ingest.session import start_session
from queryable_app.platform.jars import cache_dir


@pytest.fixture(scope="session")
def cache() -> Path:
    return cache_dir(os.environ.get("QT_CACHE_DIR", ""))


def make_archive_apart(cache: Path) -> None:
    """Make the class archive in another process, at the priority of the tests; every start of a JVM is faster with it."""
    code = "import sys; from pathlib import Path; from queryable_app.ingest import jvm, training; "
    code += "training.make_archive(cache := Path(sys.argv[1]), jvm.class_path(cache))"
    subprocess.run([sys.executable, "-c", code, str(cache)], check=True, timeout=900)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Iterator[SparkSession]:
    make_archive_apart(cache)
    environ = dict(os.environ)
    started = start_session(
        Profile(4, "512m", tmp_path_factory.mktemp("spark"), cache, options=(FIRST_COMPILER_ONLY,))
    )
    os.environ |= environ  # other tests start processes, which need what the JVM must not have
    yield started
    session = SparkSession.getActiveSession()
    assert session is not None
    process, gateway = jvm_process(), SparkContext._gateway
    session.stop()
    assert gateway is not None
    gateway.shutdown()
    assert process.stdin is not None
    process.stdin.close()
    process.wait(30)
