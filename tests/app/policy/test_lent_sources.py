"""Test that runs whose source partitions pass from one executor to another change no number."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field, replace

from hypothesis import given
from hypothesis import strategies as st

from queryable_app.policy.source_positions import SourcePositions, least_starts
from queryable_app.wire.envelopes import Envelope

SOURCES = 2
INTERNAL = 2
EXECUTORS = 3
DRIVER = EXECUTORS
"""The last process of a run."""

STEPS = 250
ACTIONS = ("record", "write", "arrive", "lend", "give back", "mark", "read", "die", "start")
RARE = ("die", "start")


@dataclass
class _Source:
    """What `RekeySource.java` knows of one source partition."""

    next: int
    sequence: list[int] = field(default_factory=lambda: [0] * INTERNAL)


@dataclass
class _Run:
    """One run: the owner of each source partition, and what each process has sent that Kafka does not have yet."""

    id: int
    sources: dict[
        int, tuple[int, _Source]
    ]  # by source partition: its owner; without one the run has ended there
    sent: dict[int, list[tuple[int, Envelope]]] = field(default_factory=lambda: defaultdict(list))
    dead: set[int] = field(default_factory=set)

    def send(self, source: int, internal: int, offset: int, row: int, rows: int) -> None:
        owner, state = self.sources[source]
        envelope = Envelope(source, offset, row, rows, self.id, state.sequence[internal], 0)
        self.sent[owner].append((internal, envelope))
        state.sequence[internal] += 1

    def mark(self, source: int) -> None:
        for internal in range(INTERNAL):
            self.send(source, internal, self.sources[source][1].next, 0, 0)


class _World:
    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.topic: list[list[list[int]]] = [
            [] for _ in range(SOURCES)
        ]  # the internal partitions of each record's rows
        self.log: list[list[Envelope]] = [[] for _ in range(INTERNAL)]
        self.read = [0] * INTERNAL
        self.positions = [SourcePositions.none(SOURCES) for _ in range(INTERNAL)]
        self.applied: list[list[tuple[int, int, int]]] = [[] for _ in range(INTERNAL)]
        self.runs: list[_Run] = []

    def start(self) -> None:
        last = self.runs[-1].id if self.runs else 0
        starts = least_starts(
            [(i, each.starts, last in each.refused_runs) for i, each in enumerate(self.positions)], INTERNAL
        )
        assert starts is not None
        run = _Run(last + 1, {source: (DRIVER, _Source(start.offset)) for source, start in enumerate(starts)})
        for source in range(SOURCES):
            run.mark(source)
        self.runs.append(run)

    def write(self, run: _Run, source: int) -> None:
        """Let the executor that has borrowed the source partition write its next record."""
        owner, state = run.sources[source]
        if owner != DRIVER and owner not in run.dead and state.next < len(self.topic[source]):
            rows = self.topic[source][state.next]
            for row, internal in enumerate(rows):
                run.send(source, internal, state.next, row, len(rows))
            state.next += 1

    def arrive(self, run: _Run, process: int) -> None:
        """Let Kafka take the oldest envelope of a process, which may have died since."""
        if run.sent[process]:
            internal, envelope = run.sent[process].pop(0)
            self.log[internal].append(envelope)

    def hand_over(self, run: _Run, source: int, to: int) -> None:
        """Change the owner, after everything that the present one has sent is acknowledged."""
        owner, state = run.sources[source]
        if owner not in run.dead:
            while run.sent[owner]:
                self.arrive(run, owner)
            run.sources[source] = (to, replace(state, sequence=[*state.sequence]))

    def consume(self, internal: int) -> None:
        for envelope in self.log[internal][self.read[internal] :][: self.dice.randrange(1, 9)]:
            self.read[internal] += 1
            if self.positions[internal].take(envelope):
                self.applied[internal].append((envelope.partition, envelope.offset, envelope.row))

    def step(self, action: str) -> None:
        if action == "start" or not self.runs:
            self.start()
        run = self.dice.choice(self.runs[-3:])
        source, process = self.dice.randrange(SOURCES), self.dice.randrange(EXECUTORS)
        match action:
            case "record":
                rows = [self.dice.randrange(INTERNAL) for _ in range(self.dice.randrange(4))]
                self.topic[source].append(rows)
            case "lend" if run.sources[source][0] == DRIVER:
                self.hand_over(run, source, process)
            case "give back":
                self.hand_over(run, source, DRIVER)
            case "write":
                self.write(run, source)
            case "mark" if run.sources[source][0] not in run.dead:
                run.mark(source)
            case "arrive":
                self.arrive(run, self.dice.randrange(EXECUTORS + 1))
            case "die":
                run.dead.add(process)
                if self.dice.random() < 0.5:  # otherwise its last requests arrive late
                    run.sent[process].clear()
            case "read":
                self.consume(self.dice.randrange(INTERNAL))
        self.check()

    def settle(self) -> None:
        """Let a quiet run complete both replicas; the first one may be refused."""
        for _ in range(3):
            self.start()
            run = self.runs[-1]
            for source in range(SOURCES):
                while run.sources[source][1].next < len(self.topic[source]):
                    for process in (0, 1):  # each writes one record, and gives the partition back
                        self.hand_over(run, source, process)
                        self.write(run, source)
                        self.hand_over(run, source, DRIVER)
                run.mark(source)
            self.flush(run)
            for internal in range(INTERNAL):
                while self.read[internal] < len(self.log[internal]):
                    self.consume(internal)
            self.check()

    def flush(self, run: _Run) -> None:
        for process in range(EXECUTORS + 1):
            while run.sent[process]:
                self.arrive(run, process)

    def check(self) -> None:
        for internal, positions in enumerate(self.positions):
            for source, at in enumerate(positions.by_partition):
                assert [each for each in self.applied[internal] if each[0] == source] == [
                    (source, offset, row)
                    for offset, rows in enumerate(self.topic[source])
                    for row, where in enumerate(rows)
                    if where == internal and (offset, row) < (at.offset, at.row)
                ]


@given(st.integers(0, 2**32), st.tuples(*[st.integers(1, 20)] * len(ACTIONS)))
def test_source_partitions_in_turn_are_written_exactly_once(seed: int, weights: tuple[int, ...]) -> None:
    """Whatever executors take turns, die with rows under way or are outlived by them: applied are exactly the rows before the
    position, and a quiet run completes the view."""
    dice = random.Random(seed)
    world = _World(dice)
    chances = [
        weight / 20 if action in RARE else weight for action, weight in zip(ACTIONS, weights, strict=True)
    ]
    for action in dice.choices(ACTIONS, chances, k=STEPS):
        world.step(action)
    world.settle()
    assert all(each.offsets == tuple(map(len, world.topic)) for each in world.positions)


def test_executor_that_gives_back_completes_no_refused_run() -> None:
    """A run stays accepted over hand-overs: nothing is written twice because an executor changed."""
    world = _World(random.Random(1))
    world.topic = [[[0, 1]] * 5, [[1]] * 4]
    world.settle()
    assert not any(each.refused_runs for each in world.positions)
    first = [envelope for log in world.log for envelope in log if envelope.run == 1 and envelope.rows]
    assert len(first) == 14
