"""Send a made-up record through a view's projection, so that the first real one finds the code loaded.

A query that runs has compiled its stages, but no row has passed through them. The first record of an idle topic would wait a
second or more, while the JVM loads what decodes it.
"""

from __future__ import annotations

import time
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from queryable_app.ingest.decoded_records import HEADERS_TYPE, View
from queryable_app.ingest.transform import project
from queryable_app.platform.log import event

# Each column depends on the id. Spark computes constants while it plans, and then no row would pass.
_RECORD: Final = (
    "encode(concat('k', id), 'UTF-8') AS key",
    """encode(concat('{"f', id, '": ', id, '}'), 'UTF-8') AS value""",
    f"CAST(NULL AS {HEADERS_TYPE.simpleString()}) AS headers",
    "timestamp_millis(id) AS timestamp",
    "CAST(id AS INT) AS partition",
    "id AS offset",
)


def rehearse_record(session: SparkSession, view: View) -> bool:
    """Compute the rows of one record and discard them. Return whether Spark did; a failure has no other effect."""
    began = time.monotonic()
    try:
        rows: Any = project(session, session.range(1).selectExpr(*_RECORD), view).frame
        rows._jdf.collect()
    except (PySparkException, Py4JError) as error:
        event("rehearsal-failed", reason=str(error)[:200])
        return False
    event("record-rehearsed", milliseconds=round(1000 * (time.monotonic() - began)))
    return True
