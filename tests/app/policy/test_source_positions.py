"""Test that a replica of an internal partition applies every row of the source exactly once, whatever jobs do."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryable_app.aggregates.clock import NO_SOURCE_CLOCK, Clock, SourceClock
from queryable_app.policy.source_positions import (
    RUNS_MAX,
    SourcePosition,
    SourcePositions,
    SourceStart,
    least_starts,
)
from queryable_app.wire.envelopes import Envelope

Record = Sequence[bool]
"""The rows of a source record, and whether each belongs to the internal partition of the test."""


def _run(records: Sequence[Record], run: int, start: int, marker_at: frozenset[int]) -> Iterator[Envelope]:
    """Yield what a run writes to the internal partition, from the source offset `start`."""
    sequence = 0

    def next_envelope(offset: int, index: int, count: int) -> Envelope:
        nonlocal sequence
        sequence += 1
        return Envelope(0, offset, index, count, run, sequence - 1, 0)

    yield next_envelope(start, 0, 0)
    for offset in range(start, len(records)):
        for index, here in enumerate(records[offset]):
            if here:
                yield next_envelope(offset, index, len(records[offset]))
        if offset in marker_at or offset == len(records) - 1:
            yield next_envelope(offset + 1, 0, 0)


def _rows_before(records: Sequence[Record], position: SourcePosition) -> list[tuple[int, int]]:
    return [
        (offset, index)
        for offset, record in enumerate(records)
        for index, here in enumerate(record)
        if here and (offset, index) < (position.offset, position.row)
    ]


_RECORDS = st.lists(st.lists(st.booleans(), max_size=3), min_size=1, max_size=12)
_ACTIONS = st.lists(
    st.tuples(st.sampled_from(["start", "write", "write", "write", "lose", "repeat"]), st.integers(0, 30)),
    max_size=80,
)


@given(_RECORDS, _ACTIONS, st.frozensets(st.integers(0, 12)))
def test_applied_rows_are_those_before_the_position(
    records: list[list[bool]], actions: list[tuple[str, int]], marker_at: frozenset[int]
) -> None:
    """After any interleaving of several jobs, lost and repeated envelopes, the applied rows are exactly those of the source
    before the position, in order."""
    position = SourcePosition()
    applied: list[tuple[int, int]] = []
    jobs: list[Iterator[Envelope]] = []
    last: dict[int, Envelope] = {}

    def arrive(envelope: Envelope) -> None:
        if position.take(envelope):
            applied.append((envelope.offset, envelope.row))

    for action, number in actions:
        if action == "start" or not jobs:
            jobs.append(_run(records, len(jobs), number % (len(records) + 1), marker_at))
            continue
        job = number % len(jobs)
        if action == "repeat":
            if job in last:
                arrive(last[job])
        elif (envelope := next(jobs[job], None)) is not None and action == "write":
            last[job] = envelope
            arrive(envelope)
        assert applied == _rows_before(records, position)

    for envelope in _run(records, 1000, position.offset, marker_at):
        arrive(envelope)
    everything = [(o, i) for o, record in enumerate(records) for i, here in enumerate(record) if here]
    assert applied == everything
    assert (position.offset, position.row) == (len(records), 0)


def test_gap_in_a_run_is_refused() -> None:
    """After a lost envelope nothing of the run is applied, and the run is named."""
    position = SourcePosition()
    assert not position.take(Envelope(0, 0, 0, 0, 7, 0, 0))
    assert position.take(Envelope(0, 0, 0, 1, 7, 1, 0))
    assert not position.take(Envelope(0, 2, 0, 1, 7, 3, 0))
    assert not position.take(Envelope(0, 3, 0, 1, 7, 4, 0))
    assert (position.offset, position.refused) == (1, (7,))


def test_run_that_begins_after_the_position_is_refused() -> None:
    """A run that does not cover the rows after the position applies nothing."""
    position = SourcePosition()
    assert not position.take(Envelope(0, 5, 0, 0, 7, 0, 0))
    assert not position.take(Envelope(0, 5, 0, 1, 7, 1, 0))
    assert (position.offset, position.refused) == (0, (7,))


def test_run_whose_start_is_cut_off_is_refused() -> None:
    """A replica that reads the log from the middle of a run applies nothing of it."""
    position = SourcePosition()
    assert not position.take(Envelope(0, 0, 0, 1, 7, 1, 0))
    assert position.refused == (7,)


def test_record_without_rows_here_advances_by_a_marker() -> None:
    """A marker moves the position over records that gave no row of this partition."""
    position = SourcePosition()
    position.take(Envelope(0, 0, 0, 0, 7, 0, 0))
    assert not position.take(Envelope(0, 9, 0, 0, 7, 1, 0))
    assert position.offset == 9


def test_run_that_relies_on_more_than_the_replica_followed_is_refused() -> None:
    """A run may leave out messages only if the replica has followed that run alone since the offset that it names."""
    position = SourcePosition()
    for run in (7, 8):
        position.take(Envelope(0, 0, 0, 0, run, 0, 0), alone_from=0)
    assert position.take(Envelope(0, 3, 0, 1, 7, 1, 0), alone_from=0)
    assert position.take(Envelope(0, 5, 0, 1, 7, 2, 0), alone_from=3)
    assert position.take(Envelope(0, 7, 0, 1, 8, 1, 0), alone_from=6)
    assert not position.take(Envelope(0, 9, 0, 1, 7, 3, 0), alone_from=6)
    assert position.take(Envelope(0, 9, 0, 1, 8, 2, 0), alone_from=7)
    assert not position.take(Envelope(0, 12, 0, 0, 8, 3, 0), alone_from=5)
    assert (position.offset, position.refused) == (10, (7, 8))


def test_marker_that_moves_nothing_takes_no_lead() -> None:
    """A second job that only repeats progress leaves the first one in the lead."""
    position = SourcePosition()
    for run in (7, 8):
        position.take(Envelope(0, 0, 0, 0, run, 0, 0), alone_from=0)
    position.take(Envelope(0, 5, 0, 1, 7, 1, 0), alone_from=0)
    position.take(Envelope(0, 6, 0, 0, 8, 1, 0), alone_from=6)
    assert position.take(Envelope(0, 8, 0, 1, 7, 2, 0), alone_from=5)


def test_memory_of_runs_is_bounded() -> None:
    """Many restarts leave a bounded number of runs, and a forgotten run is refused."""
    position = SourcePosition()
    for run in range(3 * RUNS_MAX):
        position.take(Envelope(0, 0, 0, 0, run, 0, 0))
    assert len(position.runs) == RUNS_MAX
    assert not position.take(Envelope(0, 0, 0, 1, 0, 1, 0))
    assert position.refused == (0,)


@given(_ACTIONS, st.booleans())
def test_positions_survive_the_round_trip(actions: list[tuple[str, int]], leads: bool) -> None:
    """Encoded positions decode to positions that decide alike."""
    positions = SourcePositions.none(3)
    for action, number in actions:
        envelope = Envelope(number % 4, number, 0, number % 2, number % 5, number % 3, 0)
        clock = SourceClock(number - 9, number % 10, -number) if number % 7 else NO_SOURCE_CLOCK
        starts = envelope._replace(sequence=0, rows=0, offset=0)
        taken = envelope if action == "write" else starts
        positions.take(taken, alone_from=number) if leads else positions.take(taken, clock)
    decoded = SourcePositions.decode(positions.encode())
    assert decoded.starts == positions.starts
    assert decoded.encode() == positions.encode()
    assert [each.leader for each in decoded.by_partition] == [each.leader for each in positions.by_partition]
    assert decoded.offsets == positions.offsets
    assert decoded.refused_runs == positions.refused_runs


def test_copy_leaves_the_original_unchanged() -> None:
    """A slice that is not written changes nothing."""
    positions = SourcePositions.none(1)
    copied = positions.copy()
    copied.take(Envelope(0, 0, 0, 0, 7, 0, 0))
    copied.take(Envelope(0, 3, 0, 1, 7, 1, 0))
    assert positions.offsets == (0,)
    assert copied.offsets == (4,)


def test_run_that_begins_within_a_record_needs_a_position_there() -> None:
    """A run without the first rows of a record is refused by a replica that has not applied them."""
    position = SourcePosition()
    assert not position.take(Envelope(0, 0, 1, 0, 7, 0, 0))
    assert position.refused == (7,)
    position.take(Envelope(0, 0, 0, 0, 8, 0, 0))
    assert position.take(Envelope(0, 0, 0, 2, 8, 1, 0))
    position.take(Envelope(0, 0, 1, 0, 9, 0, 0))
    assert position.take(Envelope(0, 0, 1, 2, 9, 1, 0))


def test_clock_never_goes_back() -> None:
    """A run that shows an earlier time, since the source has compacted records, leaves the clock as it is."""
    position = SourcePosition()
    position.take(Envelope(0, 0, 0, 0, 7, 0, 0))
    position.take(Envelope(0, 3, 0, 0, 7, 1, 0), SourceClock(50))
    position.take(Envelope(0, 4, 0, 0, 7, 2, 0), SourceClock(40))
    assert position.start == SourceStart(4, 0, SourceClock(50))


def starts(*offsets: int) -> list[SourceStart]:
    return [SourceStart(offset, clock=SourceClock(10 * offset)) for offset in offsets]


def test_job_starts_at_the_least_positions_of_all_partitions() -> None:
    """The start of each source partition is the least over the internal partitions, each by its most advanced replica, with the
    clock there."""
    replicas = [(0, starts(5, 9), False), (0, starts(7, 8), False), (1, starts(6, 20), False)]
    assert least_starts(replicas, 2) == starts(6, 9)


def test_job_starts_early_enough_for_a_replica_that_refused_it() -> None:
    """A replica that cannot use the log gets all rows from its own position on."""
    replicas = [(0, starts(5, 9), False), (0, starts(2, 0), True), (1, starts(6, 20), False)]
    assert least_starts(replicas, 2) == starts(2, 0)


@pytest.mark.parametrize("replicas", [[], [(0, starts(5, 9), False)]])
def test_job_waits_for_a_replica_of_each_partition(
    replicas: list[tuple[int, list[SourceStart], bool]],
) -> None:
    """Without a replica of some partition the job has no start."""
    assert least_starts(replicas, 2) is None


@pytest.mark.parametrize("seed", range(40))
def test_jobs_and_replicas_converge(seed: int) -> None:
    """Jobs, replicas and lost log tails at random: no replica ever has a wrong row or clock, and one quiet job completes all of
    them."""
    world = _World(random.Random(seed))
    for _ in range(400):
        world.step()
    world.settle()
    assert all(
        replica.positions.offsets == (len(world.source[0]), len(world.source[1]))
        for replica in world.replicas
    )


_AHEAD_MS = 100


@dataclass
class _Record:
    rows: list[int]
    """The internal partition of each row."""
    event_ms: int


class _Replica:
    def __init__(self, partition: int, log_start: int) -> None:
        self.partition = partition
        self.at = log_start
        self.positions = SourcePositions.none(2)
        self.rows: list[tuple[int, int, int]] = []

    def read(self, log: list[tuple[Envelope, SourceClock]]) -> None:
        if self.at < len(log):
            envelope, clock = log[self.at]
            self.at += 1
            if self.positions.take(envelope, clock):
                self.rows.append((envelope.partition, envelope.offset, envelope.row))
                assert self.positions.by_partition[envelope.partition].clock == clock


@dataclass
class _Job:
    """One run, which tracks the clocks as RekeyRun does."""

    run: int
    starts: list[SourceStart]
    offsets: list[int] = field(init=False)
    clocks: list[Clock] = field(init=False)
    timed: list[int] = field(init=False)
    sequences: dict[tuple[int, int], int] = field(
        default_factory=lambda: {(s, q): 0 for s in range(2) for q in range(2)}
    )

    def __post_init__(self) -> None:
        self.offsets = [each.offset for each in self.starts]
        self.clocks = [Clock(*each.clock) for each in self.starts]
        self.timed = [each.offset if each.row else -1 for each in self.starts]

    def move_clock(self, source: int, event_ms: int) -> None:
        if self.offsets[source] > self.timed[source]:
            self.timed[source] = self.offsets[source]
            self.clocks[source].advance(event_ms, _AHEAD_MS)


def _source_clock(clock: Clock) -> SourceClock:
    return SourceClock(clock.max_event_ms, clock.ahead_count, clock.ahead_min_ms)


class _World:
    """Two source partitions, two internal partitions, jobs that come and go, and replicas that start over."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.source: tuple[list[_Record], list[_Record]] = ([], [])
        self.logs: tuple[list[tuple[Envelope, SourceClock]], list[tuple[Envelope, SourceClock]]] = ([], [])
        self.log_start = [0, 0]
        self.replicas = [_Replica(0, 0), _Replica(1, 0), _Replica(1, 0)]
        self.jobs: list[_Job] = []
        self.runs = 0

    def start_job(self) -> None:
        refused_by = self.jobs[-1].run if self.jobs else -1
        least = least_starts(
            [
                (r.partition, r.positions.starts, refused_by in r.positions.refused_runs)
                for r in self.replicas
            ],
            2,
        )
        assert least is not None
        self.runs += 1
        job = _Job(self.runs, least)
        self.jobs = [*self.jobs[-1:], job]
        for source, start in enumerate(least):
            for internal in range(2):
                self.write(job, internal, source, start.row, 0)

    def write(
        self, job: _Job, internal: int, source: int, index: int, count: int, lost: bool = False
    ) -> None:
        sequence = job.sequences[source, internal]
        job.sequences[source, internal] += 1
        if not lost:
            envelope = Envelope(source, job.offsets[source], index, count, job.run, sequence, 0)
            self.logs[internal].append((envelope, _source_clock(job.clocks[source])))

    def write_markers(self, job: _Job, source: int) -> None:
        if job.timed[source] < job.offsets[source]:
            for internal in range(2):
                self.write(job, internal, source, 0, 0)

    def advance(self, job: _Job, lossy: bool) -> None:
        source = self.rng.randrange(2)
        if job.offsets[source] < len(self.source[source]):
            record = self.source[source][job.offsets[source]]
            for index, internal in enumerate(record.rows):
                job.move_clock(source, record.event_ms)
                lost = lossy and self.rng.random() < 0.05
                self.write(job, internal, source, index, len(record.rows), lost)
            job.offsets[source] += 1
        if self.rng.random() < 0.3:
            self.write_markers(job, source)

    def step(self) -> None:
        chance = self.rng.random()
        if chance < 0.3:
            rows = [self.rng.randrange(2) for _ in range(self.rng.randrange(4))]
            at_ms = self.rng.randrange(300) if self.rng.random() < 0.7 else self.rng.randrange(10**6)
            self.source[self.rng.randrange(2)].append(_Record(rows, at_ms))
        elif chance < 0.33 or not self.jobs:
            self.start_job()
        elif chance < 0.65:
            self.advance(self.rng.choice(self.jobs), lossy=True)
        elif chance < 0.66:  # records are deleted from the log
            internal = self.rng.randrange(2)
            self.log_start[internal] = len(self.logs[internal])
        elif chance < 0.68:  # a replica is lost, and another one starts with what the log has
            at = self.rng.randrange(len(self.replicas))
            partition = self.replicas[at].partition
            self.replicas[at] = _Replica(partition, self.log_start[partition])
        else:
            replica = self.rng.choice(self.replicas)
            replica.read(self.logs[replica.partition])
        self.check()

    def settle(self) -> None:
        for _ in range(6):
            self.start_job()
            job = self.jobs[-1]
            for source in range(2):
                while job.offsets[source] < len(self.source[source]):
                    self.advance(job, lossy=False)
                self.write_markers(job, source)
            for replica in self.replicas:
                while replica.at < len(self.logs[replica.partition]):
                    replica.read(self.logs[replica.partition])
            self.check()

    def check(self) -> None:
        for replica in self.replicas:
            for source, position in enumerate(replica.positions.by_partition):
                expected = [
                    (source, offset, index)
                    for offset, record in enumerate(self.source[source])
                    for index, internal in enumerate(record.rows)
                    if internal == replica.partition and (offset, index) < (position.offset, position.row)
                ]
                assert [row for row in replica.rows if row[0] == source] == expected
                clock = Clock()
                for record in self.source[source][: position.offset + bool(position.row)]:
                    if record.rows:
                        clock.advance(record.event_ms, _AHEAD_MS)
                assert position.clock == _source_clock(clock)


def test_run_of_a_recreated_topic_is_refused() -> None:
    """A topic that was made again under the same name has other records at the same offsets: none of its rows counts."""
    positions = SourcePositions.none(1)
    positions.begin(Envelope(0, 0, 0, 0, 7, 0, 0), b"first")
    assert positions.take(Envelope(0, 0, 0, 1, 7, 1, 0))
    decoded = SourcePositions.decode(positions.copy().encode())
    decoded.begin(Envelope(0, 0, 0, 0, 8, 0, 0), b"second")
    assert not decoded.take(Envelope(0, 1, 0, 1, 8, 1, 0))
    assert (decoded.topic_id, decoded.offsets) == (b"first", (1,))
    assert decoded.refused_runs == {8}
    assert decoded.take(Envelope(0, 1, 0, 1, 7, 2, 0))


def test_refused_run_does_not_name_the_topic() -> None:
    """A run that begins too late says nothing of the topic whose rows a replica has."""
    positions = SourcePositions.none(1)
    positions.begin(Envelope(0, 5, 0, 0, 7, 0, 0), b"first")
    assert positions.topic_id == b""
