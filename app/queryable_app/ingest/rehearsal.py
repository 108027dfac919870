"""Rehearse the pause between two batches of Real-Time Mode.

Between two batches no row arrives. The first pause takes half a second, because the JVM has never run that code; later ones take
a third of that. Therefore a second, small and short query runs a few batches beside the first one and writes into a sink.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from queryable_app.ingest.launch import FIRST_COMPILER_ONLY
from queryable_app.ingest.sink import Sink
from queryable_app.ingest.stream import QueryStart, start_query
from queryable_app.platform.log import event
from queryable_app.wire import row_frames

_BATCH_MS: Final = 1_000
_BATCHES: Final = 3
_SECONDS_MAX: Final = 60
_LATEST: Final = -1


def turn_to_rehearse(jvm_options: Sequence[str]) -> threading.Lock:
    """Return the lock that the one supervisor takes that rehearses. It is taken already where the JVM lives for seconds."""
    turn = threading.Lock()
    if FIRST_COMPILER_ONLY in jvm_options:
        turn.acquire()
    return turn


class Rehearsal:
    """Run a short query from construction until `end_when_done` ends it. Its failures have no effect on the main query."""

    def __init__(self, session: SparkSession, start: QueryStart, run_dir: Path, scratch: Path) -> None:
        self.batches = 0
        """The number of batches that have ended."""
        self._until = time.monotonic() + _SECONDS_MAX
        self._query: StreamingQuery | None = None
        self._sink: Sink | None = None
        socket = run_dir / "rehearsal.sock"
        short = replace(start.spec, ingest=replace(start.spec.ingest, batch_ms=_BATCH_MS))
        partition = min(start.positions)
        start = replace(start, spec=short, positions={partition: _LATEST}, generation=0, row_socket=socket)
        try:
            self._sink = Sink(socket, self._on_payload)
            self._query = start_query(session, start, scratch / "rehearsal")
        except (PySparkException, Py4JError, OSError) as error:
            event("rehearsal-failed", reason=str(error)[:200])
            self.end()

    @property
    def running(self) -> bool:
        return self._query is not None

    def end_when_done(self) -> None:
        """End the query when it has run its batches. The supervisor calls this in every pass."""
        query = self._query
        if query is not None and not (
            query.isActive and self.batches < _BATCHES and time.monotonic() < self._until
        ):
            self.end()

    def end(self) -> None:
        query, self._query = self._query, None
        try:
            if query is not None:
                query.stop()
        except (PySparkException, Py4JError) as error:
            event("rehearsal-failed", reason=str(error)[:200])
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.close()

    def _on_payload(self, payload: bytes) -> None:
        self.batches += payload[0] == row_frames.END
