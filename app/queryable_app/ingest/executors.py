"""Configure Spark with executors: processes beside the driver, which read the source partitions and write their rows.

Strategy: on one machine, the driver's JVM starts them itself (Spark's `local-cluster`). On Kubernetes the operator makes their
pods, and each connects to the driver (`rekey_executor.py`), which therefore calls no API server. Real-Time Mode occupies a slot
for each partition during a batch. On one machine the executors have them together. A pod has all of them, so one that is left
reads the whole source topic. A failed task ends the query: the next run of the rekey job begins where the nodes are.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from queryable_app.contract import REKEY_BLOCKS_PORT, REKEY_PORT
from queryable_app.platform.jars import pyspark_jars

_MIB: Final = {"k": 1 / 1024, "m": 1, "g": 1024}
_IN_BOTH: Final = {
    "spark.plugins": "io.queryabletopics.RekeyExecutors",
    "spark.task.maxFailures": "1",
    "spark.locality.wait": "0s",
    "spark.authenticate": "true",
}
_DRIVER: Final = "CoarseGrainedScheduler"  # the name of Spark's endpoint
_POD_SECURITY: Final = {
    "spark.authenticate": "true",
    # What is sent contains the settings of Kafka's clients.
    "spark.network.crypto.enabled": "true",
    "spark.network.crypto.saslFallback": "false",
    "spark.network.crypto.cipher": "AES/GCM/NoPadding",
    # A host that has lost its power closes no connection.
    "spark.network.timeout": "30s",
    "spark.network.timeoutInterval": "10s",
    "spark.executor.heartbeatInterval": "5s",
    "spark.executor.heartbeat.maxFailures": "5",
}


def executor_settings(
    executors: int, slots: int, heap: str, jars: Sequence[Path], java_options: Sequence[str]
) -> Mapping[str, str]:
    """Return the settings of Spark that differ with executors. `jars` are those that pyspark does not have."""
    return {
        "spark.master": f"local-cluster[{executors},{-(-slots // executors)},{_mib(heap)}]",
        **_IN_BOTH,
        "spark.executor.memory": heap,
        "spark.executor.extraClassPath": ":".join(map(str, jars)),
        "spark.executor.extraJavaOptions": " ".join(java_options),
        # Any process of this machine can reach the driver's port.
        "spark.authenticate.secret": secrets.token_hex(32),
    }


def pod_settings(address: str, token: str) -> Mapping[str, str]:
    """Return the settings of a driver to which executors in other pods connect. `address` is that of its pod."""
    return {
        **_IN_BOTH,
        **_POD_SECURITY,
        "spark.master": "executors",  # RekeyCluster.java
        "spark.driver.host": host_of(address),
        "spark.driver.bindAddress": host_of(address),
        "spark.driver.port": str(REKEY_PORT),
        "spark.driver.blockManager.port": str(REKEY_BLOCKS_PORT),
        "spark.blockManager.port": str(REKEY_BLOCKS_PORT),
        "spark.port.maxRetries": "0",
        "spark.authenticate.secret": shared_secret(token),
    }


def executor_options() -> list[str]:
    """Return the JVM's options with which an executor in a pod connects to the driver. It gets the other settings from there."""
    own = {**_POD_SECURITY, "spark.blockManager.port": str(REKEY_BLOCKS_PORT), "spark.port.maxRetries": "0"}
    return [f"-D{name}={value}" for name, value in own.items()]


def executor_arguments(driver: str, address: str, slots: int) -> list[str]:
    """Return the arguments of an executor in a pod with this address. Spark knows no number twice."""
    arguments = {
        "driver-url": f"spark://{_DRIVER}@{driver}:{REKEY_PORT}",
        "bind-address": host_of(address),
        "hostname": host_of(address),
        "executor-id": str(1 + secrets.randbelow(2**31 - 1)),
        "cores": str(slots),
        "app-id": "rekey",  # as RekeyCluster.java says
        "resourceProfileId": "0",
    }
    return [text for name, value in arguments.items() for text in (f"--{name}", value)]


def missing_slots(slots: int, partitions: int) -> str | None:
    """Return why a query cannot start with so many slots, or None if it can. Real-Time Mode would begin the tasks without a slot
    only when those with one end, with the batch."""
    if slots >= partitions:
        return None
    return (
        f"the executors have {slots} slots, and Real-Time Mode needs one for each of {partitions} partitions: look why the pods "
        "of the executors do not run, or set spec.ingest.executors to 0"
    )


def shared_secret(token: str) -> str:
    """Return the secret of a revision's driver and executors, from the token of its nodes, which it does not disclose."""
    return hmac.new(token.encode(), b"executors", hashlib.sha256).hexdigest()


def host_of(address: str) -> str:
    """Return an address as Spark writes hosts."""
    return f"[{address}]" if ":" in address else address


def make_spark_home(scratch: Path) -> Mapping[str, str]:
    """Make a home of Spark below `scratch`, in which it keeps the files of executors. Return the variables that name it."""
    home = scratch / "spark"
    home.mkdir()
    (home / "jars").symlink_to(pyspark_jars())
    # With the version of Scala, Spark looks for no build directories.
    return {"SPARK_HOME": str(home), "SPARK_SCALA_VERSION": "2.13"}


def _mib(heap: str) -> int:
    """Return the size of a heap, such as `512m`, in MiB."""
    return max(1, int(int(heap[:-1]) * _MIB[heap[-1].lower()]))
