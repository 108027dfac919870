"""Connect PySpark to a JVM that has been started."""

from __future__ import annotations

import os
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from py4j import protocol
from pyspark import SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql.types import NumpyArrayConverter, NumpyScalarConverter

from queryable_app.ingest.jvm import StartedJvm
from queryable_app.platform.jars import JarsError

_START_SECONDS_MAX: Final = 120
_POLL_SECONDS: Final = 0.01
_CONNECTION: Final = struct.Struct(">ii")  # the port, and the length of the secret behind it


def connect(jvm: StartedJvm) -> Any:
    """Wait until the JVM takes commands, let PySpark use it, and return PySpark's gateway."""
    port, secret = _connection(jvm.process, jvm.connection_file)
    _take_no_numpy_values()
    with _gateway_in_environment(port, secret):
        launch: Any = launch_gateway  # PySpark names no types here
        gateway = launch()
    gateway.proc = jvm.process
    SparkContext._ensure_initialized(gateway=gateway)
    return gateway


def _take_no_numpy_values() -> None:
    """Take the converters of numpy's values from the calls of the JVM. Each looks at every argument of every call, and the first
    one imports numpy, which takes an eighth of a second and 13 MB. Ingest has no such values."""
    numpy = (NumpyArrayConverter, NumpyScalarConverter)
    protocol.INPUT_CONVERTER[:] = [each for each in protocol.INPUT_CONVERTER if not isinstance(each, numpy)]


def jvm_process() -> subprocess.Popen[bytes]:
    """Return the JVM, to be watched and killed."""
    gateway: Any = SparkContext._gateway
    process: subprocess.Popen[bytes] = gateway.proc
    return process


def _connection(process: subprocess.Popen[bytes], connection_file: Path) -> tuple[int, str]:
    """Return the port and the secret that the gateway server has written."""
    deadline = time.monotonic() + _START_SECONDS_MAX
    while not connection_file.exists():  # the file appears with its whole content
        code = process.poll()
        if code is None and time.monotonic() > deadline:
            process.kill()
            code = process.wait()
        if code is not None:
            assert process.stdin is not None
            process.stdin.close()
            raise JarsError(f"The JVM did not start: it ended with exit code {code}.")
        time.sleep(_POLL_SECONDS)
    written = connection_file.read_bytes()
    connection_file.unlink()
    port, length = _CONNECTION.unpack_from(written)
    return port, written[_CONNECTION.size :][:length].decode()


@contextmanager
def _gateway_in_environment(port: int, secret: str) -> Iterator[None]:
    """Name the running JVM in the environment while PySpark connects to it; remove the secret afterwards."""
    os.environ |= {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
    try:
        yield
    finally:
        del os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"]
