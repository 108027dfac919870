"""Start the Spark session of a node: one JVM in local mode, sized and muted for streaming.

Strategy: the settings that matter were measured (docs/experiments.md). There are as many threads as the topic has partitions,
because Real-Time Mode occupies one for each partition during a batch. The JVM writes only below one scratch directory, which
its parent process empties, so the JVM may be killed at any time.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Final

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from queryable_app.ingest.class_archive import archive_options
from queryable_app.ingest.executors import executor_settings, make_spark_home, pod_settings
from queryable_app.ingest.jvm import class_path, own_jars, start_jvm

_CHECKPOINTS: Final = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
FIRST_COMPILER_ONLY: Final = "-XX:TieredStopAtLevel=1"
"""Leaves code as the first compiler made it: a JVM that lives for seconds gains nothing from the second one."""


@dataclass(frozen=True, slots=True)
class Profile:
    threads: int
    """Tasks that can run at the same time: at least the partitions of the topic."""

    heap: str
    """The JVM's heap, such as `512m`."""

    scratch: Path
    """A directory that only this process uses. It must exist."""

    cache: Path
    """The directory of jars and class archives."""

    executors: int = 0
    """The executors that run the tasks, as processes that the JVM starts. 0: the JVM runs them itself."""

    pod_address: str = ""
    """The address at which executors connect that are pods. Empty: there are none."""

    token: str = field(default="", repr=False)
    """The token of the view's nodes, if executors are pods."""

    options: tuple[str, ...] = ()
    """More options of the JVM."""


def start_session(profile: Profile, training: Sequence[str] = ()) -> SparkSession:
    """Start a session, in the JVM that `prepare_jvm` has started, or else in a new one.

    `training` are JVM options of a run that makes the class archive, in place of those that use it.
    """
    if SparkContext._gateway is None:
        prepare_jvm(profile, training)
    settings = {**_settings(profile), **_executor_settings(profile)}
    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    # The caller of the check reports refused SQL.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    return SparkSession.builder.config(conf=conf).getOrCreate()


def prepare_jvm(profile: Profile, training: Sequence[str] = ()) -> Any:
    """Start the JVM without a session, and return PySpark's gateway to it. Fetch or build what the cache lacks."""
    jars = class_path(profile.cache)
    archive = training or archive_options(profile.cache, jars)
    home = make_spark_home(profile.scratch) if profile.executors else {}
    options = [*java_options(profile), *archive]
    return start_jvm(jars, profile.heap, options, profile.scratch, home)


def java_options(profile: Profile) -> list[str]:
    directives = resources.files("queryable_app.ingest").joinpath("start_only_code.json")
    return [
        "-XX:+UseSerialGC",
        # Code that has to wait for the second compiler is not profiled meanwhile, which makes it slower.
        "-XX:Tier3DelayOn=0",
        # Deeper, the second compiler compiles Kafka's client again into each of Spark's iterators above it.
        "-XX:MaxInlineLevel=9",
        "-XX:+UnlockDiagnosticVMOptions",
        f"-XX:CompilerDirectivesFile={directives}",
        "-XX:-DisplayVMOutput",  # how many directives there are
        "-Xss8m",  # Spark recognises a stopped query by a regular expression that recurses deeply
        "-Xlog:disable",  # warnings of the JVM itself, on standard output
        "-Xlog:all=error:stderr",
        "-XX:-UsePerfData",  # a file in /tmp without a reader
        "-XX:+ExitOnOutOfMemoryError",  # with code 3; the supervisor of ingest starts it again
        f"-Djava.io.tmpdir={profile.scratch}",
        "-Dslf4j.provider=io.queryabletopics.EventLogs",
        "-Dlog4j.provider=org.apache.logging.log4j.simple.internal.SimpleProvider",  # else Log4j configures itself
        "-Dslf4j.internal.verbosity=WARN",  # which provider it takes
        *profile.options,
    ]


def _executor_settings(profile: Profile) -> Mapping[str, str]:
    if profile.pod_address:
        return pod_settings(profile.pod_address, profile.token)
    if not profile.executors:
        return {}
    jars, options = own_jars(profile.cache), java_options(profile)
    return executor_settings(profile.executors, profile.threads, profile.heap, jars, options)


def _settings(profile: Profile) -> dict[str, str]:
    return {
        "spark.app.name": "queryable-topics",
        "spark.master": f"local[{max(2, profile.threads)}]",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(profile.scratch),
        "spark.sql.warehouse.dir": str(profile.scratch / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.metrics.conf.*.sink.servlet.class": "io.queryabletopics.NoServlet",
        "spark.metrics.staticSources.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.ansi.enabled": "false",  # an impossible cast gives NULL; an error would stop the stream
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.adaptive.enabled": "false",
        # The default manager forks a process for every little file: 80 ms a batch against 13.
        "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINTS,
        "spark.hadoop.fs.file.impl": "io.queryabletopics.CheckpointFiles",
        "spark.sql.streaming.minBatchesToRetain": "10",
        "spark.sql.streaming.pollingDelay": "10ms",
        "spark.sql.streaming.realTimeMode.minBatchDuration": "1000",  # milliseconds, for the rehearsal
        "spark.sql.streaming.numRecentProgressUpdates": "10",
        "spark.sql.streaming.stopTimeout": "10s",  # a query with unreachable brokers may never stop by itself
    }
