"""Keep one run of the rekey job alive: source topic → the keys of rows → internal topic.

Strategy: one loop without threads, and no state on disk. Each run begins at the least source positions that the nodes name.
A run ends when its query or its producer fails, when a replica refuses it, or when a topic changes. Then the next one begins.
What a run writes again is a duplicate for the replicas, so it does not matter when a run ends, nor how many jobs there are.
"""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from queryable_app.aggregates.windows import ahead_ms
from queryable_app.config.rekey import INTERNAL_TOPIC_CONFIG, internal_topic
from queryable_app.config.topic_spec import TopicSpec
from queryable_app.contract import NodeSettings, ObservedTopic
from queryable_app.ingest.executors import missing_slots
from queryable_app.ingest.java_classes import java_map, own_class
from queryable_app.ingest.kafka_admin import WITHOUT_METRICS, KafkaAdmin
from queryable_app.ingest.rekey_gaps import LOOK_SECONDS, SourceGaps
from queryable_app.ingest.rekey_nodes import RekeyNodes, ReplicaSources
from queryable_app.ingest.rekey_stalls import RunStalls
from queryable_app.ingest.sample_record import rehearse_record
from queryable_app.ingest.stream import QueryStart, contribution_of, kafka_source, refused_real_time, view_of
from queryable_app.ingest.supervisor import (
    HEALTHY_SECONDS,
    RETRY_SECONDS,
    RETRY_SECONDS_MAX,
    first_line,
    query_error,
)
from queryable_app.ingest.transform import check_view, project
from queryable_app.platform.kafka_clients import KafkaUnavailable
from queryable_app.platform.log import event
from queryable_app.policy.source_positions import SourceStart, least_starts, trusted_offsets

_LOOK_SECONDS: Final = 0.2
_REPORT_SECONDS: Final = 1.0
_FAILURES_MAX: Final = 5  # the doublings of the delay
_COMMIT_SECONDS: Final = 5.0
_TOPICS_SECONDS: Final = (
    0.5  # a source topic that is made again with more records is read on, until this look notices
)
_RECREATED: Final = (
    "was deleted and made again: make a new revision of the view, or set onDataLoss to Rebuild"
)
_COUNTS: Final = 4  # of a run, before its offsets
_BAD_CHARS_MAX: Final = 500
_EXECUTORS_SECONDS: Final = 20.0  # the first run waits so long for all executors, to spread its tasks


class _RunEnded(Exception):
    """The present run has ended; the message says why. The next one begins after the delay."""

    def __init__(self, state: str, why: str) -> None:
        super().__init__(why)
        self.state = state


class RekeyJob:
    def __init__(
        self, session: SparkSession, spec: TopicSpec, settings: NodeSettings, partitions: int, scratch: Path
    ) -> None:
        """`partitions` are those of the source topic that the view reads, and of the internal topic."""
        self._session = session
        self._jvm: Any = session._jvm
        self._spec = spec
        self._settings = settings
        self._partitions = partitions
        self._topic = internal_topic(settings.application_id)
        self._checkpoints = scratch / "checkpoints"
        self._nodes = RekeyNodes(settings)
        self._admin: KafkaAdmin | None = None
        self._reads_headers = check_view(session, view_of(spec)).reads_headers
        self._mode = spec.ingest.mode
        self._run = 0
        self._source_partitions = 0  # as last seen; 0: it has not been looked up
        self._source_id = ""  # as last seen
        self._started_over = ""  # the source topic with which the nodes start over
        self._stalls = RunStalls()
        self._commit_refused = False  # the last time
        self._rehearsed = False
        self._failures = 0  # in a row
        self._state = self._why = ""

    def run(self) -> NoReturn:
        """Run until the process ends."""
        while True:
            began = time.monotonic()
            try:
                self._run_once()
            except _RunEnded as ended:
                state, why = ended.state, str(ended)
            except (KafkaUnavailable, PySparkException, Py4JError) as error:
                state, why = "restarting", first_line(error)
                if self._mode == "realtime" and refused_real_time(error):
                    self._mode = "microbatch"
            self._failures = 0 if time.monotonic() - began > HEALTHY_SECONDS else self._failures + 1
            if state != self._state:
                event("rekey-run-ended", state=state, reason=why)
            self._state, self._why = state, why
            self._report(state, why)
            time.sleep(min(RETRY_SECONDS * 2 ** (min(self._failures, _FAILURES_MAX) - 1), RETRY_SECONDS_MAX))

    def _run_once(self) -> NoReturn:
        context: Any = self._session.sparkContext
        # Executors that fail one after the other end Spark, and this process with it.
        if context._jsc.sc().isStopped():
            raise RuntimeError("Spark has ended, because no executor stays alive")
        if self._settings.pod_address:
            self._wait_for_executors(context._jsc.sc())
        if self._admin is None:
            self._admin = KafkaAdmin(self._jvm, self._settings.bootstrap_servers, self._spec.kafka_config)
        admin = self._admin
        seen = self._source(admin)
        self._source_partitions, self._source_id = seen.partitions, seen.id
        internal = self._internal_topic(admin)
        # A failure shows until a run begins: status does not change with each attempt.
        reported = (
            self._report("failed", self._why) if self._state == "failed" else self._report("starting", "")
        )
        # Only now its offsets: rows of another job may have moved the nodes' positions beyond earlier ends.
        source = self._source(admin)
        if self._nodes.source_ids - {source.id}:
            self._start_over(admin, source.id)
        least = least_starts(
            [(each.partition, each.starts, self._run in each.refused) for each in reported], self._partitions
        )
        refused = any(self._run in each.refused for each in reported)
        if least is None:
            raise _RunEnded(
                "waiting-for-nodes", "some partition has no replica that answers and can be written"
            )
        starts = _start_offsets(least, source)
        trusted = None
        if self._spec.key_by:
            ends = [source.latest[partition] for partition in range(self._partitions)]
            trusted = trusted_offsets(
                [[start.offset for start in each.starts] for each in reported], ends if refused else None
            )
        self._run = secrets.randbits(62) + 1
        query = None
        gaps = SourceGaps(
            self._jvm, self._settings.bootstrap_servers, self._spec.kafka_config, self._spec.topic
        )
        try:
            self._start_run(source.id, least, starts, trusted)
            query = self._start_query(starts)
            event("rekey-run", run=self._run, starts=starts, mode=self._mode)
            self._rehearse(starts, source)
            self._watch(admin, query, (source.id, internal), gaps)
        finally:
            if query is not None and query.isActive:
                query.stop()
            gaps.close()
            own_class(self._jvm, "RekeyRuns").end(self._run)

    def _source(self, admin: KafkaAdmin) -> ObservedTopic:
        source = admin.describe(self._spec.topic, range(self._partitions))
        if source is None:
            raise _RunEnded("waiting-for-topic", f"there is no topic {self._spec.topic}")
        if source.partitions < self._partitions:
            raise _RunEnded(
                "failed", f"the topic {self._spec.topic} has lost partitions; make a new revision"
            )
        return source

    def _wait_for_executors(self, spark: Any) -> None:
        """Wait until all executors are connected, if this is the first run. Then some suffice: each has a slot for every task."""
        cluster = own_class(self._jvm, "RekeyCluster")
        wanted = min(self._spec.ingest.executors, self._partitions)
        deadline = time.monotonic() + _EXECUTORS_SECONDS
        while not self._run and cluster.executors(spark) < wanted and time.monotonic() < deadline:
            self._report("starting", f"{cluster.executors(spark)} of {wanted} executors are connected")
            time.sleep(_LOOK_SECONDS)
        if missing := missing_slots(cluster.slots(spark), self._partitions):
            raise _RunEnded("waiting-for-executors", missing)

    def _has_begun(self) -> bool:
        """Tell whether each source partition has a slot, and each executor has begun a task. A new one is slow at first."""
        if not self._spec.ingest.executors:
            return True
        context: Any = self._session.sparkContext
        spark, cluster = context._jsc.sc(), own_class(self._jvm, "RekeyCluster")
        if missing_slots(cluster.slots(spark), self._partitions):
            return False
        joined = own_class(self._jvm, "RekeyRuns").joined(self._run)
        return bool(joined >= cluster.executors(spark))

    def _report(self, state: str, detail: str) -> Sequence[ReplicaSources]:
        return self._nodes.report(state, detail, self._run, self._source_partitions, self._source_id)

    def _start_over(self, admin: KafkaAdmin, source_id: str) -> NoReturn:
        """End what the nodes have of another source topic, as `onDataLoss` says. Without the internal topic they start over."""
        if self._spec.on_data_loss == "Fail":
            raise _RunEnded("failed", f"the topic {self._spec.topic} {_RECREATED}")
        if self._started_over != source_id:  # once: the nodes need a few seconds to notice
            admin.delete(self._topic)
            self._started_over = source_id
            event(
                "internal-topic-deleted",
                topic=self._topic,
                reason="the source topic was deleted and made again",
            )
        raise _RunEnded(
            "waiting-for-nodes", f"the topic {self._spec.topic} was deleted and made again; nodes start over"
        )

    def _internal_topic(self, admin: KafkaAdmin) -> str:
        """Return the id of the internal topic, which is created if it does not exist."""
        found = admin.identity(self._topic)
        if found is None:
            admin.create(self._topic, self._partitions, INTERNAL_TOPIC_CONFIG)
            event("internal-topic-created", topic=self._topic, partitions=self._partitions)
            found = admin.identity(self._topic)
        if found is None:
            raise _RunEnded("restarting", f"the topic {self._topic} is not there yet")
        if found[1] < self._partitions:
            raise _RunEnded(
                "failed",
                f"the topic {self._topic} has {found[1]} partitions and the view needs {self._partitions}; "
                "delete the topic and make a new revision of the view",
            )
        return found[0]

    def _start_run(
        self,
        source_id: str,
        covered: Sequence[SourceStart],
        starts: Sequence[int],
        trusted: Sequence[int] | None,
    ) -> None:
        servers = {"bootstrap.servers": self._settings.bootstrap_servers}
        settings = {**WITHOUT_METRICS, **self._spec.kafka_config, **servers}
        window = None if self._spec.aggregate is None else self._spec.aggregate.window
        own_class(self._jvm, "RekeyRuns").start(
            self._run,
            self._topic,
            self._partitions,
            java_map(self._jvm, settings.items()),
            source_id,
            self._longs([each.offset for each in covered]),
            self._longs(starts),
            0 if window is None else ahead_ms(window),
            self._longs([number for each in covered for number in (each.row, *each.clock)]),
            None if trusted is None else self._longs(trusted),
        )

    def _start_query(self, starts: Sequence[int]) -> StreamingQuery:
        shutil.rmtree(self._checkpoints, ignore_errors=True)
        checkpoint = self._checkpoints / str(self._run)
        checkpoint.mkdir(parents=True)
        positions = dict(enumerate(starts))
        start = QueryStart(
            self._spec,
            self._settings.bootstrap_servers,
            self._partitions,
            positions,
            self._run,
            Path(),
            self._mode,
            self._reads_headers,
        )
        projection = project(self._session, kafka_source(self._session, start), view_of(self._spec))
        writer = projection.frame.writeStream.outputMode("update").option(
            "checkpointLocation", str(checkpoint)
        )
        if self._mode == "realtime":
            writer = writer.trigger(realTime=f"{self._spec.ingest.batch_ms} milliseconds")  # type: ignore[call-overload]
        else:
            writer = writer.trigger(processingTime=f"{self._spec.ingest.trigger_ms} milliseconds")
        sink = own_class(self._jvm, "RekeyWriter")(
            self._run,
            self._spec.on_bad_record == "Fail",
            contribution_of(self._session, projection),
            len(projection.frame.columns) - 2 if projection.makes_rows else -1,
        )
        writer._jwrite = writer._jwrite.foreach(sink)
        return writer.start()

    def _rehearse(self, starts: Sequence[int], source: ObservedTopic) -> None:
        """Before the job reports that it streams, load the code that the first record of an idle topic needs, once."""
        idle = all(start >= source.latest[partition] for partition, start in enumerate(starts))
        if idle and not self._rehearsed and not self._spec.ingest.executors:
            rehearse_record(self._session, view_of(self._spec))
        self._rehearsed = True  # if there are records, they load it

    def _watch(
        self, admin: KafkaAdmin, query: StreamingQuery, topics: tuple[str, str], gaps: SourceGaps
    ) -> NoReturn:
        """Report the run, and move it over gaps, until it ends."""
        runs = own_class(self._jvm, "RekeyRuns")
        report_at = check_at = look_at = commit_at = time.monotonic()
        while True:
            if not query.isActive:
                error = query_error(query)
                if self._mode == "realtime" and refused_real_time(error):
                    self._mode = "microbatch"
                raise _RunEnded("restarting", first_line(error))
            if failure := runs.failure(self._run):
                raise _RunEnded("restarting", f"the internal topic cannot be written: {failure}")
            now = time.monotonic()
            if now >= look_at:
                look_at = now + LOOK_SECONDS
                offsets = [int(offset) for offset in runs.counts(self._run).split()[_COUNTS:]]
                for partition, reached in gaps.look(offsets).items():
                    runs.skip(self._run, partition, offsets[partition], reached)
                stalled = self._stalls.look(offsets, gaps.next_record, now, reads=self._has_begun())
                if stalled is not None:
                    raise _RunEnded("restarting", stalled)
            if now >= report_at:
                report_at = now + _REPORT_SECONDS
                self._state = "streaming"
                detail = _detail(runs.counts(self._run), runs.lastBad(self._run))
                replicas = self._report("streaming", detail)
                if any(self._run in replica.refused for replica in replicas):
                    raise _RunEnded("restarting", "a replica needs earlier records than this run has")
                if now >= commit_at:
                    commit_at = now + _COMMIT_SECONDS
                    self._commit(admin, replicas)
            if now >= check_at:
                check_at = now + _TOPICS_SECONDS
                self._check_topics(admin, topics)
            time.sleep(_LOOK_SECONDS)

    def _commit(self, admin: KafkaAdmin, replicas: Sequence[ReplicaSources]) -> None:
        """Commit how far the view is in the source topic, for lag tools. They are never read back."""
        reached = least_starts([(each.partition, each.starts, False) for each in replicas], self._partitions)
        if reached is None:
            return
        group = self._settings.application_id
        try:
            admin.commit(group, self._spec.topic, [each.offset for each in reached])
        except KafkaUnavailable as error:
            if not self._commit_refused:
                event("group-not-committed", group=group, reason=str(error))
            self._commit_refused = True
        else:
            self._commit_refused = False

    def _check_topics(self, admin: KafkaAdmin, topics: tuple[str, str]) -> None:
        try:
            seen = [admin.identity(self._spec.topic), admin.identity(self._topic)]
        except KafkaUnavailable:
            return  # the producer fails if that lasts
        if seen[0] is not None:
            self._source_partitions = seen[0][1]
        for found, id, name in zip(seen, topics, (self._spec.topic, self._topic), strict=True):
            if found is None or found[0] != id:
                raise _RunEnded("restarting", f"the topic {name} was deleted")

    def _longs(self, numbers: Sequence[int]) -> Any:
        gateway: Any = self._session.sparkContext._gateway
        array = gateway.new_array(self._jvm.long, len(numbers))
        for place, number in enumerate(numbers):
            array[place] = number
        return array


def _detail(counts: str, last_bad: str | None) -> str:
    """Return a sentence for status, from the counts of a run and its last record that could not be decoded."""
    rows, no_group, bad, dropped = counts.split()[:_COUNTS]
    which = f", the last at {last_bad[:_BAD_CHARS_MAX]}" if last_bad else ""
    return f"{rows} rows since its start; without one: {dropped} dropped, {no_group} in no group, {bad} bad{which}"


def _start_offsets(least: Sequence[SourceStart], source: ObservedTopic) -> list[int]:
    """Return where the query begins: at the nodes' positions, and for a partition without one at the earliest record."""
    starts = []
    for partition, (offset, _, _) in enumerate(least):
        earliest, latest = source.earliest[partition], source.latest[partition]
        if 0 < offset < earliest:
            raise _RunEnded(
                "failed",
                f"records {offset} to {earliest} of partition {partition} are gone from the source topic; "
                "make a new revision of the view",
            )
        if offset > latest:
            raise _RunEnded(
                "failed",
                f"the source topic ends at {latest} in partition {partition}, before the view's position {offset}; "
                f"it {_RECREATED}",
            )
        starts.append(max(offset, earliest))
    return starts
