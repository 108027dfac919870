"""Keep one query running from the positions that serve gives, for as long as the process lives.

Strategy: one loop without threads. Its state is the connection to serve, the topic as last announced to serve, the query, and
the time of the next check of the topic. Every failure of the query or of Kafka has the same consequence: stop the query, discard
the announced topic, and check the topic again after a delay. serve then sends new positions, and a new query starts
there. A permanent failure is reported as such, and retried all the same.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NoReturn

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from queryable_app.config.topic_spec import TopicSpec
from queryable_app.contract import CONTROL_SOCKET, ROW_SOCKET, ObservedTopic
from queryable_app.ingest.control import Control, ServeDisconnected
from queryable_app.ingest.failures import PermanentFailure, permanent_failure
from queryable_app.ingest.kafka_admin import KafkaAdmin
from queryable_app.ingest.rehearsal import Rehearsal
from queryable_app.ingest.sample_record import rehearse_record
from queryable_app.ingest.stream import QueryStart, refused_real_time, start_query, view_of
from queryable_app.platform.kafka_clients import KafkaUnavailable
from queryable_app.platform.log import event
from queryable_app.wire.ingest_failures import IngestFailure

TICK_SECONDS: Final = 0.2
TOPIC_CHECK_SECONDS: Final = 5.0  # the delay until a recreated or grown topic is noticed
RETRY_SECONDS: Final = 1.0
RETRY_SECONDS_MAX: Final = 30.0
HEALTHY_SECONDS: Final = 60.0  # after that long a query counts as healthy, and its next retry is short again
CHECK_AGAIN_SECONDS: Final = 600.0  # the delay until a repaired image or machine is noticed
_DETAIL_CHARS_MAX: Final = 600
_SAME_FAILURES: Final = 3  # after so many failures for one reason in a row, the reason is permanent


class Supervisor:
    def __init__(
        self,
        session: SparkSession,
        spec: TopicSpec,
        bootstrap_servers: str,
        run_dir: Path,
        scratch: Path,
        partitions: int,
        reads_headers: bool,
        rehearsal: threading.Lock | None = None,
    ) -> None:
        """`rehearsal` is held by the supervisor that rehearses, for good: once is enough for the JVM."""
        self._session = session
        self._spec = spec
        self._bootstrap_servers = bootstrap_servers
        self._run_dir = run_dir
        self._scratch = scratch
        self._partitions = partitions  # of the placement: the topic may have grown since
        self._reads_headers = reads_headers
        self._mode = spec.ingest.mode
        self._refusal = ""  # why the query does not run in the mode of the spec
        self._admin: KafkaAdmin | None = None
        self._query: StreamingQuery | None = None
        self._query_start: QueryStart | None = None  # the start of the present query
        self._rehearsal: Rehearsal | None = None
        self._rehearsal_turn = rehearsal or threading.Lock()
        self._hydrated = False  # serve has reported that all replicas were complete
        self._query_since = 0.0
        self._starts = 0
        self._failures = 0  # in a row
        self._last_failure = ""  # shows until a query is healthy, also while the next ones try
        self._reasons: list[str] = []  # of the failures in a row; "" for a transient one
        self._failure: IngestFailure | None = None
        """The permanent failure. The query is retried all the same, and a healthy query clears it."""
        self._state = ("", "")
        self._topic = spec.topic
        self._wanted: tuple[int, ...] | None = None
        self._announced_topic: tuple[str, int, bool] | None = (
            None  # the topic's id, partitions and compaction, as last sent to serve
        )
        self._earliest: Mapping[int, int] = {}  # offsets of the topic, as last sent to serve
        self._next_check_at = 0.0
        self._restart_pending = (
            False  # serve has the new topic, and fences the present query off before it answers
        )

    def run(self) -> NoReturn:
        """Serve one connection to serve after the other until the process ends."""
        while True:
            control = connect(self._run_dir)
            self._wanted, self._announced_topic, self._state, self._restart_pending = (
                None,
                None,
                ("", ""),
                False,
            )
            try:
                self._report_starting(control)
                while True:
                    for message in control.receive(TICK_SECONDS):
                        self._on_message(control, message)
                    self._tick(control)
            except ServeDisconnected as error:
                event("serve-gone", reason=str(error))
            finally:
                control.close()
                self._stop()
                if self._rehearsal is not None:
                    self._rehearsal.end()

    def _on_message(self, control: Control, message: Mapping[str, Any]) -> None:
        if message["type"] == "wanted":
            self._topic = message["topic"]
            self._wanted = tuple(message["partitions"])
            self._announced_topic, self._next_check_at = None, 0.0
        elif message["type"] == "start" and self._announced_topic is not None:
            positions = {int(partition): offset for partition, offset in message["positions"].items()}
            positions |= {p: self._earliest[p] for p, o in positions.items() if o < 0 and p in self._earliest}
            self._start(control, message["generation"], positions, message.get("retrying", ()))
        elif message["type"] == "hydrated":
            self._hydrated = True

    def _tick(self, control: Control) -> None:
        if self._query is not None and not self._restart_pending:
            if not self._query.isActive:
                self._fail(control, query_error(self._query))
            elif self._state[0] == "starting" and self._query.status["message"] != "Initializing sources":
                self._report_state(control, "streaming")
            elif self._failures and time.monotonic() - self._query_since > HEALTHY_SECONDS:
                self._recover(control)
        if self._hydrated and self._state[0] == "streaming":
            self._rehearse()
        if self._rehearsal is not None:
            self._rehearsal.end_when_done()
        if self._wanted is not None and time.monotonic() >= self._next_check_at:
            self._check_topic(control, self._wanted)

    def _rehearse(self) -> None:
        """Rehearse once in the life of the process, after the hydration."""
        if self._rehearsal is not None or self._query_start is None or self._mode != "realtime":
            return
        if self._rehearsal_turn.acquire(blocking=False):
            self._rehearsal = Rehearsal(self._session, self._query_start, self._run_dir, self._scratch)
            record = threading.Thread(
                target=rehearse_record, args=(self._session, view_of(self._spec)), daemon=True
            )
            record.start()  # it takes a second or more

    def _check_topic(self, control: Control, wanted: tuple[int, ...]) -> None:
        """Check whether the topic exists and is still the one announced to serve.

        Its offsets are requested only if it is another one, since that takes a call into the JVM for each partition.
        """
        try:
            if self._admin is None:
                self._admin = KafkaAdmin(self._session._jvm, self._bootstrap_servers, self._spec.kafka_config)
            compacted = self._spec.history is None or self._admin.is_compacted(self._topic)
            known = (
                self._announced_topic is not None
                and (*(self._admin.identity(self._topic) or ()), compacted) == self._announced_topic
            )
            seen = None if known else self._admin.describe(self._topic, wanted)
        except KafkaUnavailable as error:
            failure = permanent_failure(error.__cause__)
            if failure is None:
                self._report_state(control, "waiting-for-kafka", str(error))
            else:
                self._report_state(control, "failed", failure.message, failure.reason)
            self._next_check_at = time.monotonic() + (RETRY_SECONDS if failure is None else RETRY_SECONDS_MAX)
            return
        self._next_check_at = time.monotonic() + TOPIC_CHECK_SECONDS
        if known:
            if self._state[0] == "waiting-for-kafka" and self._query is not None:
                self._report_state(control, "streaming")
        elif seen is None:
            self._lose_topic(control)
        else:
            self._announce_topic(control, replace(seen, compacted=compacted))

    def _lose_topic(self, control: Control) -> None:
        self._stop()
        self._announced_topic = None
        self._next_check_at = time.monotonic() + RETRY_SECONDS
        if self._state[0] != "waiting-for-topic":
            control.send_topic(None)
            self._report_state(control, "waiting-for-topic", f"there is no topic {self._topic}")

    def _announce_topic(self, control: Control, seen: ObservedTopic) -> None:
        """Send the topic to serve, which answers with start positions in a new generation and refuses the older query's rows.

        The older query runs until then, so that the pause in the rows is short.
        """
        if self._announced_topic is not None:
            event("topic-changed", topic=self._topic, id=seen.id, partitions=seen.partitions)
        self._announced_topic = (seen.id, seen.partitions, seen.compacted)
        self._earliest = seen.earliest
        self._restart_pending = True
        control.send_topic(seen)

    def _start(
        self, control: Control, generation: int, positions: Mapping[int, int], retrying: Sequence[int]
    ) -> None:
        """Start a query at `positions`. serve sends `wanted` when the stores of the `retrying` partitions can be written."""
        self._restart_pending = False
        self._stop()
        if not positions and retrying:
            self._report_state(
                control, "restarting", f"the stores of partitions {retrying} cannot be written at present"
            )
            return
        if not positions:
            self._report_state(
                control, "failed" if self._wanted else "streaming", "there is no partition to read"
            )
            return
        self._starts += 1
        self._report_starting(control)
        start = QueryStart(
            self._spec,
            self._bootstrap_servers,
            self._partitions,
            positions,
            generation,
            self._run_dir / ROW_SOCKET,
            self._mode,
            self._reads_headers,
        )
        try:
            self._query = start_query(self._session, start, self._scratch / "checkpoints")
        except (PySparkException, Py4JError) as error:
            self._fail(control, error)
            return
        self._query_since, self._query_start = time.monotonic(), start
        event("query", generation=generation, partitions=len(positions), mode=self._mode)

    def _fail(self, control: Control, error: BaseException) -> None:
        """Plan a retry of a query that has ended by itself or did not start."""
        detail = first_line(error)
        self._stop()
        self._announced_topic = None
        if self._mode == "realtime" and refused_real_time(error):
            event("real-time-refused", reason=detail, instead="microbatch")
            self._mode = "microbatch"
            self._refusal = f"in micro-batches, since Spark refuses Real-Time Mode: {detail}"
            delay = 0.0
            self._report_state(control, "restarting", detail)
        else:
            self._last_failure = f"tries again after: {detail}"
            delay = min(RETRY_SECONDS * 2**self._failures, RETRY_SECONDS_MAX)
            self._failures += 1
            event("query-ended", reason=detail, again_in_seconds=delay)
            self._record_failure(permanent_failure(error))
            if self._failure is None:
                self._report_state(control, "restarting", detail)
            else:
                self._report_state(control, "failed", self._failure.message, self._failure.reason)
        self._next_check_at = time.monotonic() + delay

    def _record_failure(self, failure: IngestFailure | None) -> None:
        """Treat a failure as permanent when the query has ended for the same reason several times in a row."""
        self._reasons = [*self._reasons, failure.reason if failure else ""][-_SAME_FAILURES:]
        if failure is not None and self._reasons == [failure.reason] * _SAME_FAILURES:
            if not failure.caused_by_spec:
                raise PermanentFailure(failure)  # a later process may find the image or the machine repaired
            self._failure = failure

    def _recover(self, control: Control) -> None:
        """Clear the failures of earlier queries, since this one has been healthy for long."""
        self._failures, self._reasons = 0, []
        self._failure, self._last_failure = None, ""
        if self._state[0] in ("streaming", "failed"):
            self._report_state(control, "streaming")

    def _stop(self) -> None:
        query, self._query = self._query, None
        if query is not None and query.isActive:
            query.stop()  # raises when it does not end in time; then the process ends, and the query with it

    def _report_starting(self, control: Control) -> None:
        """Report the start of a query, or still the permanent failure while the query is retried."""
        if self._failure is None:
            self._report_state(control, "starting")
        else:
            self._report_state(control, "failed", self._failure.message, self._failure.reason)

    def _report_state(self, control: Control, state: str, detail: str = "", reason: str = "") -> None:
        detail = detail or self._last_failure or self._refusal
        if self._state != (state, detail):
            self._state = (state, detail)
            control.send_state(state, self._mode, detail, self._starts, reason)


def connect(run_dir: Path) -> Control:
    """Return a connection to serve, as soon as serve listens."""
    waiting = False
    while True:
        try:
            return Control(run_dir / CONTROL_SOCKET)
        except ServeDisconnected as error:
            if not waiting:
                event("waiting-for-serve", reason=str(error))
                waiting = True
            time.sleep(TICK_SECONDS)


def report_failed(run_dir: Path, mode: str, failure: IngestFailure) -> None:
    """Report a permanent failure to serve, and stay connected, so that status shows it.

    Return when the image or the machine may have been repaired. A repaired spec comes with another process.
    """
    event("failed", reason=failure.reason, message=failure.message)
    until = time.monotonic() + (math.inf if failure.caused_by_spec else CHECK_AGAIN_SECONDS)
    while time.monotonic() < until:
        control = connect(run_dir)
        try:
            control.send_state("failed", mode, failure.message, 0, failure.reason)
            while (left := until - time.monotonic()) > 0:
                control.receive(min(left, HEALTHY_SECONDS))
        except ServeDisconnected:
            pass
        finally:
            control.close()


def query_error(query: StreamingQuery) -> BaseException:
    return query.exception() or RuntimeError("the query ended without saying why")


def first_line(error: BaseException) -> str:
    """Return the innermost cause in one line; the causes around it only say that a query has failed."""
    cause: Any = getattr(error, "_origin", None) or getattr(error, "java_exception", None)
    text = str(error)
    while cause is not None:
        if message := cause.getMessage():
            text = f"{cause.getClass().getSimpleName()}: {message}"
        cause = cause.getCause()
    return text.strip().split("\n")[0][:_DETAIL_CHARS_MAX]
