"""Configure Spark with executors: processes beside the driver, which read the source partitions and write their rows.

Strategy: on one machine, the driver's JVM starts them itself (Spark's `local-cluster`). Real-Time Mode occupies a slot for each
partition during a batch, so together the executors have at least that many. Spark starts another executor if one is killed,
and a failed task ends the query: the next run of the rekey job begins where the nodes are.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from queryable_app.platform.jars import pyspark_jars

_MIB: Final = {"k": 1 / 1024, "m": 1, "g": 1024}
_PLUGIN: Final = "io.queryabletopics.RekeyExecutors"


def executor_settings(
    executors: int, slots: int, heap: str, jars: Sequence[Path], java_options: Sequence[str]
) -> Mapping[str, str]:
    """Return the settings of Spark that differ with executors. `jars` are those that pyspark does not have."""
    return {
        "spark.master": f"local-cluster[{executors},{-(-slots // executors)},{_mib(heap)}]",
        "spark.plugins": _PLUGIN,
        "spark.executor.memory": heap,
        "spark.executor.extraClassPath": ":".join(map(str, jars)),
        "spark.executor.extraJavaOptions": " ".join(java_options),
        "spark.task.maxFailures": "1",
        "spark.locality.wait": "0s",
        # Any process of this machine can reach the driver's port.
        "spark.authenticate": "true",
        "spark.authenticate.secret": secrets.token_hex(32),
    }


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
