"""Check the row writer at start-up: send sample rows through it into a sink, and compare them.

The writer is compiled against Spark's classes. A row that arrives changed must show here, in one sentence, and not as garbage
in a store. The sample rows are made without a query, since the first query takes a second. They are those of a view of latest
values, and then those of an aggregate, so that the first view of either kind starts alike.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from queryable_app.ingest.java_classes import own_class
from queryable_app.ingest.sink import Sink
from queryable_app.ingest.stream import EVENT_MS_COLUMN
from queryable_app.wire import row_frames
from queryable_app.wire.contributions import ABSENT, Decimal, encode
from queryable_app.wire.disk_format import Row, encode_row
from queryable_app.wire.row_frames import SliceRow

_TIMESTAMP_MS: Final = 1_700_000_000_000
_ROWS: Final = ((0, 7, _TIMESTAMP_MS, b"k", b"1"), (0, 8, _TIMESTAMP_MS, b"k", None))
_EVENT_MS: Final = -62_135_596_800_000
_ADDED: Final = (
    (0, 9, _TIMESTAMP_MS, b"k", _EVENT_MS, True, -5, b"t", "-12.50"),
    (0, 10, _TIMESTAMP_MS, b"k", _EVENT_MS, False, 5, None, "1000"),
)
_TYPES, _FILTERED = "-lsn", "0100"


class WriterBroken(Exception):
    """A row arrived changed, so that streaming would corrupt the stores."""


def check_writer(session: SparkSession, run_dir: Path) -> None:
    path = run_dir / "check.sock"
    received: list[bytes] = []
    with Sink(path, received.append):
        try:
            _write(session, path)  # returns when the sink has acknowledged every row
        except Exception as error:
            raise WriterBroken(f"the row writer does not work with this Spark: {error}") from error
    wanted = [
        SliceRow(b"k", encode_row(Row(7, _TIMESTAMP_MS, 0, b"1")), row_frames.ROW, 7),
        SliceRow(b"k", encode_row(Row(8, _TIMESTAMP_MS, 0, None)), row_frames.ROW, 8),
        _added(9, [2, -5, b"t", Decimal(-1250, 2)]),
        _added(10, [2, ABSENT, None, Decimal(1000, 0)]),
    ]
    slices = [payload for payload in received if payload[0] == row_frames.SLICE]
    rows = [
        row for payload in slices for row in row_frames.rows(payload, row_frames.decode_slice_header(payload))
    ]
    if rows != wanted:
        raise WriterBroken(f"the row writer sent {rows!r} where {wanted!r} was expected")


def _added(offset: int, inputs: list[Any]) -> SliceRow:
    stored = encode(_TYPES, offset, _TIMESTAMP_MS, _EVENT_MS, inputs)
    return SliceRow(b"k", stored, row_frames.ROW, offset)


def _write(session: SparkSession, path: Path) -> None:
    jvm: Any = session._jvm
    contribution = own_class(jvm, "Contribution")(
        _TYPES, _FILTERED, own_class(jvm, "SampleRow").schema(), EVENT_MS_COLUMN
    )
    for rows, added in ((_ROWS, None), (_ADDED, contribution)):
        aggregates = added is not None
        writer = own_class(jvm, "RowWriter")(
            str(path), 1, 1, "string", "json", 0, aggregates, added, None, None, None
        )
        writer.open(0, 0)
        for row in rows:
            writer.process(own_class(jvm, "SampleRow").of(*row))
        writer.close(None)
