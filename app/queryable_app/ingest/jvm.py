"""Start the JVM that Spark runs in, or one of its executors.

Strategy: java is started directly. Spark's launch scripts first start another JVM that only computes the command, and
Spark's own main class then reads the configuration a second time: together a second of CPU at every start. Both end in
the gateway server that is started here. The JVM dies with this process, however that ends.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from queryable_app.contract import ENV_PREFIX
from queryable_app.ingest.writer_jar import REPACKED, writer_jar
from queryable_app.platform.jars import find_java, ingest_jars, pyspark_jars

_GATEWAY: Final = "org.apache.spark.api.python.PythonGatewayServer"
_EXECUTOR: Final = "io.queryabletopics.RekeyExecutor"
_PR_SET_PDEATHSIG: Final = 1

# Spark opens every jar at its start, to look for services, and keeps its directory in memory. A view needs none of these, a third
# of all. The library for machine learning also registers functions in every session, which takes half a second.
_MACHINE_LEARNING: Final = (
    "spark-mllib spark-graphx_ breeze spire cats-kernel_ algebra_ "
    "arpack blas- lapack- JTransforms- JLargeArrays-"
)
_HIVE: Final = (  # but not hive-storage-api, which ORC needs
    "spark-hive hive-beeline- hive-cli- hive-common- hive-exec- hive-jdbc- hive-metastore- hive-serde- hive-service- "
    "hive-shims- libthrift- libfb303- datanucleus- derby HikariCP- javolution-"
)
_CLUSTERS: Final = "spark-kubernetes_ kubernetes- volcano- vertx- spark-yarn_ zookeeper- curator-"
_SERVERS: Final = "spark-connect_ spark-pipelines_ spark-streaming_ jersey- hk2-"
_SHELL: Final = "spark-repl_ scala-compiler- jline-"
_UNUSED_JARS: Final = (*" ".join((_MACHINE_LEARNING, _HIVE, _CLUSTERS, _SERVERS, _SHELL)).split(), *REPACKED)

# The options of Spark's launcher (org.apache.spark.launcher.JavaModuleOptions), without the vector module of machine learning.
_OPENED_PACKAGES: Final = (
    "java.base/java.lang",
    "java.base/java.lang.invoke",
    "java.base/java.lang.reflect",
    "java.base/java.io",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/jdk.internal.ref",
    "java.base/sun.nio.ch",
    "java.base/sun.nio.cs",
    "java.base/sun.security.action",
    "java.base/sun.util.calendar",
    "java.security.jgss/sun.security.krb5",
)
_MODULE_OPTIONS: Final = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED_PACKAGES),
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
    "--sun-misc-unsafe-memory-access=allow",
    "--enable-native-access=ALL-UNNAMED",
)


def class_path(cache: Path) -> list[Path]:
    """Return all jars of the JVM, always in the same order. Fetch or build what the cache lacks."""
    spark = [jar for jar in sorted(pyspark_jars().glob("*.jar")) if not jar.name.startswith(_UNUSED_JARS)]
    return [*own_jars(cache), *spark]


def own_jars(cache: Path) -> list[Path]:
    """Return the jars that pyspark does not have."""
    connector = ingest_jars(cache)
    return [writer_jar(cache, connector), *connector]


@dataclass(frozen=True, slots=True)
class StartedJvm:
    process: subprocess.Popen[bytes]
    connection_file: Path
    """The file that appears when the JVM takes PySpark's commands."""


def start_jvm(
    jars: Sequence[Path],
    heap: str,
    options: Sequence[str],
    scratch: Path,
    environ: Mapping[str, str],
) -> StartedJvm:
    """Start the JVM for PySpark. `scratch` must exist. `environ` is for the JVM alone."""
    connection_file = scratch / f"gateway-{secrets.token_hex(8)}"
    variables = {**environ, "_PYSPARK_DRIVER_CONN_INFO_PATH": str(connection_file)}
    return StartedJvm(_start(jars, heap, [*options, _GATEWAY], variables), connection_file)


def start_executor(
    jars: Sequence[Path],
    heap: str,
    options: Sequence[str],
    arguments: Sequence[str],
    scratch: Path,
    secret: str,
) -> subprocess.Popen[bytes]:
    """Start an executor, which connects to the driver that `arguments` name and ends with it."""
    process = _start(jars, heap, [*options, _EXECUTOR, *arguments], {"SPARK_LOCAL_DIRS": str(scratch)})
    assert process.stdin is not None
    with process.stdin as first_line:
        first_line.write(f"{secret}\n".encode())
    return process


def _start(
    jars: Sequence[Path], heap: str, options: Sequence[str], environ: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    prepare_environment(os.environ, find_java())
    command = [str(find_java()), "-cp", ":".join(map(str, jars)), f"-Xmx{heap}"]
    return subprocess.Popen(
        [*command, *_MODULE_OPTIONS, *options],
        stdin=subprocess.PIPE,
        env={**os.environ, **environ},
        preexec_fn=partial(_become_child, os.getpid(), ctypes.CDLL(None)),  # no thread runs yet
    )


def prepare_environment(environ: MutableMapping[str, str], java: Path) -> None:
    """Set the variables that PySpark reads and the JVM inherits."""
    environ["JAVA_HOME"] = str(java.parent.parent)
    environ["PYSPARK_PYTHON"] = sys.executable
    environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    # A Spark that is installed on the machine may have another version than pyspark's. The node's own variables may hold a
    # password, and the JVM exposes its environment.
    for name in tuple(environ):
        if name in ("SPARK_HOME", "SPARK_CONF_DIR") or name.startswith(ENV_PREFIX):
            del environ[name]


def _become_child(parent: int, libc: ctypes.CDLL) -> None:
    """Ignore Ctrl-C, since the parent ends the JVM; let the kernel kill the JVM if the parent is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
