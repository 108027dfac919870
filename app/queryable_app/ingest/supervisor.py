"""Keeps one query running where serve wants it, for as long as the process lives.

Strategy: one loop without threads. What it knows is few things: the connection to serve, what serve was last told of the
topic, the query, and when to look at the topic next. Whatever goes wrong with the query or Kafka ends in the same
place: stop the query, forget what serve was told, and look again a little later. serve then answers with new
positions, and the query starts there. A failure that waiting cannot mend is said as such, and tried again all the same.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from queryable_app.config.topic_spec import TopicSpec
from queryable_app.contract import CONTROL_SOCKET, ROW_SOCKET, ObservedTopic
from queryable_app.ingest.control import Control, ServeGone
from queryable_app.ingest.failures import PermanentFailure, permanent_failure
from queryable_app.ingest.kafka_admin import KafkaAdmin
from queryable_app.ingest.rehearsal import Rehearsal
from queryable_app.ingest.stream import Start, refused_real_time, start_query
from queryable_app.platform.kafka_clients import KafkaUnavailable
from queryable_app.platform.log import event
from queryable_app.wire.ingest_failures import IngestFailure

TICK_SECONDS: Final = 0.2
LOOK_SECONDS: Final = 5.0  # how soon a topic that was made again, or has grown, is noticed
RETRY_SECONDS: Final = 1.0
RETRY_SECONDS_MAX: Final = 30.0
HEALTHY_SECONDS: Final = 60.0  # a query that has lived that long starts afresh with short retries
CHECK_AGAIN_SECONDS: Final = 600.0  # how soon an image or a machine that was put right is noticed
_DETAIL_CHARS_MAX: Final = 600
_SAME_DEATHS: Final = 3  # a query that has ended so often for one reason will end for it again


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
    ) -> None:
        self._session = session
        self._spec = spec
        self._bootstrap_servers = bootstrap_servers
        self._run_dir = run_dir
        self._scratch = scratch
        self._partitions = partitions  # of the placement: the topic may have grown since
        self._reads_headers = reads_headers
        self._mode = spec.ingest.mode
        self._refusal = ""  # why it is not the mode that was asked for
        self._admin: KafkaAdmin | None = None
        self._query: StreamingQuery | None = None
        self._begun: Start | None = None  # what the present query began with
        self._rehearsal: Rehearsal | None = None
        self._hydrated = False  # serve has said that all replicas were complete
        self._query_since = 0.0
        self._starts = 0
        self._deaths = 0  # in a row
        self._reasons: list[str] = []  # of these deaths; empty for one that may pass
        self._failure: IngestFailure | None = None
        """What waiting cannot mend. The query is tried all the same, and one that lives takes it back."""
        self._state = ("", "")
        self._topic = spec.topic
        self._wanted: tuple[int, ...] | None = None
        self._told: tuple[str, int] | None = None  # the topic's id and partitions, as serve last heard them
        self._look_at = 0.0
        self._moving = (
            False  # serve has been told of a topic and shuts the present query out before it answers
        )

    def run(self) -> NoReturn:
        """Until the process is ended."""
        while True:
            control = connect(self._run_dir)
            self._wanted, self._told, self._state, self._moving = None, None, ("", ""), False
            try:
                self._say_starting(control)
                while True:
                    for message in control.receive(TICK_SECONDS):
                        self._hear(control, message)
                    self._tick(control)
            except ServeGone as error:
                event("serve-gone", reason=str(error))
            finally:
                control.close()
                self._stop()
                if self._rehearsal is not None:
                    self._rehearsal.end()

    def _hear(self, control: Control, message: Mapping[str, Any]) -> None:
        if message["type"] == "wanted":
            self._topic = message["topic"]
            self._wanted = tuple(message["partitions"])
            self._told, self._look_at = None, 0.0
        elif message["type"] == "start" and self._told is not None:
            positions = {int(partition): offset for partition, offset in message["positions"].items()}
            self._start(control, message["generation"], positions, message.get("retrying", ()))
        elif message["type"] == "hydrated":
            self._hydrated = True

    def _tick(self, control: Control) -> None:
        if self._query is not None and not self._moving:
            if not self._query.isActive:
                self._fail(control, death(self._query))
            elif self._state[0] == "starting" and self._query.status["message"] != "Initializing sources":
                self._say(control, "streaming")
            elif self._deaths and time.monotonic() - self._query_since > HEALTHY_SECONDS:
                self._recover(control)
        if self._hydrated and self._state[0] == "streaming":
            self._rehearse()
        if self._rehearsal is not None:
            self._rehearsal.tend()
        if self._wanted is not None and time.monotonic() >= self._look_at:
            self._look(control, self._wanted)

    def _rehearse(self) -> None:
        """Once in the life of the process, when it takes no time from the hydration any more."""
        if self._rehearsal is None and self._begun is not None and self._mode == "realtime":
            self._rehearsal = Rehearsal(self._session, self._begun, self._run_dir, self._scratch)

    def _look(self, control: Control, wanted: tuple[int, ...]) -> None:
        """At the topic: whether it is there, and still the same one. Only when it is not what serve knows are the ends of its
        partitions asked for: that is a call into the JVM for each of them."""
        try:
            if self._admin is None:
                self._admin = KafkaAdmin(self._session._jvm, self._bootstrap_servers, self._spec.kafka_config)
            known = self._told is not None and self._admin.identity(self._topic) == self._told
            seen = None if known else self._admin.look(self._topic, wanted)
        except KafkaUnavailable as error:
            failure = permanent_failure(error.__cause__)
            if failure is None:
                self._say(control, "waiting-for-kafka", str(error))
            else:
                self._say(control, "failed", failure.message, failure.reason)
            self._look_at = time.monotonic() + (RETRY_SECONDS if failure is None else RETRY_SECONDS_MAX)
            return
        self._look_at = time.monotonic() + LOOK_SECONDS
        if known:
            if self._state[0] == "waiting-for-kafka" and self._query is not None:
                self._say(control, "streaming")
        elif seen is None:
            self._lose_topic(control)
        else:
            self._tell(control, seen)

    def _lose_topic(self, control: Control) -> None:
        self._stop()
        self._told = None
        self._look_at = time.monotonic() + RETRY_SECONDS
        if self._state[0] != "waiting-for-topic":
            control.tell_topic(None)
            self._say(control, "waiting-for-topic", f"there is no topic {self._topic}")

    def _tell(self, control: Control, seen: ObservedTopic) -> None:
        """serve answers with where to start, in a new generation: what an older query still sends is refused. It goes on
        until then, so that rows pause no longer than they must."""
        if self._told is not None:
            event("topic-changed", topic=self._topic, id=seen.id, partitions=seen.partitions)
        self._told = (seen.id, seen.partitions)
        self._moving = True
        control.tell_topic(seen)

    def _start(
        self, control: Control, generation: int, positions: Mapping[int, int], retrying: Sequence[int]
    ) -> None:
        """`retrying` are partitions whose stores cannot be written at present: serve sends `wanted` when they can."""
        self._moving = False
        self._stop()
        if not positions and retrying:
            self._say(
                control, "restarting", f"the stores of partitions {retrying} cannot be written at present"
            )
            return
        if not positions:
            self._say(control, "failed" if self._wanted else "streaming", "there is no partition to read")
            return
        self._starts += 1
        self._say_starting(control)
        start = Start(
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
        self._query_since, self._begun = time.monotonic(), start
        event("query", generation=generation, partitions=len(positions), mode=self._mode)

    def _fail(self, control: Control, error: BaseException) -> None:
        """The query has ended by itself, or did not start."""
        detail = first_line(error)
        self._stop()
        self._told = None
        if self._mode == "realtime" and refused_real_time(error):
            event("real-time-refused", reason=detail, instead="microbatch")
            self._mode = "microbatch"
            self._refusal = f"in micro-batches, since Spark refuses Real-Time Mode: {detail}"
            delay = 0.0
            self._say(control, "restarting", detail)
        else:
            delay = min(RETRY_SECONDS * 2**self._deaths, RETRY_SECONDS_MAX)
            self._deaths += 1
            event("query-ended", reason=detail, again_in_seconds=delay)
            self._note_death(permanent_failure(error))
            if self._failure is None:
                self._say(control, "restarting", detail)
            else:
                self._say(control, "failed", self._failure.message, self._failure.reason)
        self._look_at = time.monotonic() + delay

    def _note_death(self, failure: IngestFailure | None) -> None:
        """Once can be chance; a failure is permanent when the query has ended for the same reason several times in a row."""
        self._reasons = [*self._reasons, failure.reason if failure else ""][-_SAME_DEATHS:]
        if failure is not None and self._reasons == [failure.reason] * _SAME_DEATHS:
            if not failure.caused_by_spec:
                raise PermanentFailure(failure)  # another process may find the image or the machine put right
            self._failure = failure

    def _recover(self, control: Control) -> None:
        """The query has lived for long: what was said of its predecessors no longer holds."""
        self._deaths, self._reasons = 0, []
        if self._failure is not None:
            self._failure = None
            self._say(control, "streaming")

    def _stop(self) -> None:
        query, self._query = self._query, None
        if query is not None and query.isActive:
            query.stop()  # raises when it does not end in time: then the process ends, which stops it for certain

    def _say_starting(self, control: Control) -> None:
        """A permanent failure stays said while the query is tried again."""
        if self._failure is None:
            self._say(control, "starting")
        else:
            self._say(control, "failed", self._failure.message, self._failure.reason)

    def _say(self, control: Control, state: str, detail: str = "", reason: str = "") -> None:
        detail = detail or self._refusal
        if self._state != (state, detail):
            self._state = (state, detail)
            control.tell_state(state, self._mode, detail, self._starts, reason)


def connect(run_dir: Path) -> Control:
    """As soon as serve listens."""
    waiting = False
    while True:
        try:
            return Control(run_dir / CONTROL_SOCKET)
        except ServeGone as error:
            if not waiting:
                event("waiting-for-serve", reason=str(error))
                waiting = True
            time.sleep(TICK_SECONDS)


def report_failed(run_dir: Path, mode: str, failure: IngestFailure) -> None:
    """Tell serve of a failure that no retry mends, and stay connected, so that it can be seen.

    Returns when the image or the machine may have been put right. A spec that is put right comes with another process."""
    event("failed", reason=failure.reason, message=failure.message)
    until = time.monotonic() + (math.inf if failure.caused_by_spec else CHECK_AGAIN_SECONDS)
    while time.monotonic() < until:
        control = connect(run_dir)
        try:
            control.tell_state("failed", mode, failure.message, 0, failure.reason)
            while (left := until - time.monotonic()) > 0:
                control.receive(min(left, HEALTHY_SECONDS))
        except ServeGone:
            pass
        finally:
            control.close()


def death(query: StreamingQuery) -> BaseException:
    return query.exception() or RuntimeError("the query ended without saying why")


def first_line(error: BaseException) -> str:
    """The innermost cause in one line: what is around it only says that a query has failed."""
    cause: Any = getattr(error, "_origin", None) or getattr(error, "java_exception", None)
    text = str(error)
    while cause is not None:
        if message := cause.getMessage():
            text = f"{cause.getClass().getSimpleName()}: {message}"
        cause = cause.getCause()
    return text.strip().split("\n")[0][:_DETAIL_CHARS_MAX]
