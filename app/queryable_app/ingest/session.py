"""Start the Spark session of a node: one JVM in local mode, sized and muted for streaming.

Strategy: the settings that matter were measured (docs/experiments.md). There are as many threads as the topic has partitions,
because Real-Time Mode occupies one for each partition during a batch. The JVM writes only below one scratch directory, which
its parent process empties, so the JVM may be killed at any time.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from queryable_app.ingest.executors import executor_settings, pod_settings
from queryable_app.ingest.gateway import connect
from queryable_app.ingest.jvm import own_jars
from queryable_app.ingest.launch import Profile, java_options, launch

_CHECKPOINTS: Final = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)


def start_session(profile: Profile) -> SparkSession:
    """Start a session, in the JVM that PySpark is connected to, or else in a new one."""
    if SparkContext._gateway is None:
        connect(launch(profile))
    settings = {**_settings(profile), **_executor_settings(profile)}
    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    # The caller of the check reports refused SQL.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    return SparkSession.builder.config(conf=conf).getOrCreate()


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
