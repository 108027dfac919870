"""Compile the key of a group from the columns of `groupBy`, and the new key of a record from those of `keyBy`.

One column of text is a string key, one of integers is a long key, and anything else is a JSON array, which has a place for null.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from queryable_app.config.rekey import GroupKeyFormat
from queryable_app.ingest.catalyst import SqlError, column, output

_INTEGERS: Final = (ByteType, ShortType, IntegerType, LongType)
_OTHERS: Final = (BooleanType, DateType, DecimalType, TimestampType, TimestampNTZType)


def group_key(
    session: SparkSession, visible: DataFrame, names: Sequence[str], path: str
) -> tuple[Column, GroupKeyFormat]:
    """Return the key's bytes and their format. Null: the record is in no group. `path` is that of the field with the names."""
    columns: list[tuple[Column, DataType]] = []
    for name in names:
        places = [place for place, known in enumerate(visible.columns) if known.lower() == name.lower()]
        if not places:
            raise SqlError(f"{path}: there is no column {name}; name columns of {', '.join(visible.columns)}")
        kind = visible.schema[places[0]].dataType
        if not isinstance(kind, (StringType, *_INTEGERS, *_OTHERS)):
            raise SqlError(
                f"{path}: {name} is {kind.simpleString()}; name columns of text, integers, decimals, booleans, dates or "
                "timestamps"
            )
        columns.append((column(session, output(visible)[places[0]]), kind))
    if len(columns) == 1 and isinstance(columns[0][1], StringType):
        return columns[0][0].cast(BinaryType()), "string"
    if len(columns) == 1 and isinstance(columns[0][1], _INTEGERS):
        return columns[0][0].cast(LongType()).cast(BinaryType()), "long"
    parts: list[Column] = []
    for each, _ in columns:
        in_array = f.to_json(f.array(each))
        parts += [f.lit(","), f.substring(in_array, f.lit(2), f.length(in_array) - 2)]
    return f.concat(f.lit("["), *parts[1:], f.lit("]")).cast(BinaryType()), "json"
