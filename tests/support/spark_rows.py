"""Compute the rows of a data frame as Spark passes them to a writer."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame


def spark_rows(frame: DataFrame) -> list[Any]:
    """Return the rows as objects of the JVM, in Spark's own layout."""
    java: Any = frame._jdf
    return list(java.queryExecution().executedPlan().executeCollect())
