"""Inject faults into the job and the topics of a rekeyed view."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

from tests.simulation.late_runs import last_late_start
from tests.simulation.rekey_job import RekeyJob
from tests.simulation.world import World


class RekeyFaults:
    """Inject the faults of a rekeyed view. `until` ends one after some seconds, or when all faults end."""

    def __init__(
        self, world: World, dice: random.Random, until: Callable[[float, Callable[[], None]], None]
    ) -> None:
        self._world = world
        self._random = dice
        self._until = until

    @property
    def kinds(self) -> list[tuple[Callable[[], None], int]]:
        """Return the faults that the world can have, each with its weight."""
        kinds: list[tuple[Callable[[], None], int]] = []
        if self._world.view.rekeyed:
            kinds += [
                (self._kill_job, 8),
                (self._stop_job, 4),
                (self._second_job, 5),
                (self._lose_batch, 5),
                (self._repeat_batch, 3),
                (self._slow_job, 4),
                (self._truncate, 2),
                (self._begin_late, 4),
            ]
        if self._world.compacts:
            kinds += [(self._compact, 10), (self._overtake, 10)]
        return kinds

    # The rekey job.

    def _kill_job(self) -> None:
        jobs = self._world.jobs
        for job in jobs.running[-1:]:
            jobs.kill(job)
        self._until(self._random.choice((0.1, 1.0, 5.0)), self._restart_job)

    def _restart_job(self) -> None:
        if not self._world.jobs.running:
            self._world.jobs.start()

    def _second_job(self) -> None:
        jobs = self._world.jobs
        job = jobs.start()
        self._until(self._random.choice((1.0, 4.0, 9.0)), lambda: self._end_second(job))

    def _end_second(self, job: RekeyJob) -> None:
        jobs = self._world.jobs
        jobs.kill(job)
        self._restart_job()

    def _stop_job(self) -> None:
        """Stop a job. It then is far behind, and goes on with the run that it had."""
        for job in self._world.jobs.running[:1]:
            job.process.stop_signal()
            self._world.note(f"{job.process.name} is stopped")
            self._until(self._random.choice((0.5, 3.0, 10.0)), job.process.continue_signal)

    def _lose_batch(self) -> None:
        for job in self._world.jobs.running[:1]:
            if job.writes is not None:
                job.writes.loses_batch = True

    def _repeat_batch(self) -> None:
        for job in self._world.jobs.running[:1]:
            if job.writes is not None:
                job.writes.repeats_batch = True

    def _slow_job(self) -> None:
        """Slow a job down, so that it is behind another one."""
        for job in self._world.jobs.running[:1]:
            job.slow = True
            self._world.note(f"{job.process.name} reads slowly")
            self._until(self._random.uniform(1, 9), partial(setattr, job, "slow", False))

    def _overtake(self) -> None:
        """Stop a job, and let another one pass it and end. Compact the source before the first one goes on with what it knows:
        then it never sees some of the records that the other one has written."""
        jobs = self._world.jobs
        for job in jobs.running[:1]:
            job.process.stop_signal()
            self._world.note(f"{job.process.name} is stopped, and overtaken")
            passing = jobs.start()
            seconds = self._random.uniform(1.5, 4)
            self._until(seconds, partial(jobs.kill, passing))
            self._until(seconds + self._random.uniform(0.5, 4), partial(self._go_on, job))

    def _go_on(self, job: RekeyJob) -> None:
        for partition in range(self._world.partitions):
            self._world.topic.compact(partition, self._world.topic.end(partition))
        job.process.continue_signal()
        self._restart_job()

    # The topics of a rekeyed view.

    def _begin_late(self) -> None:
        """Let another job begin, and delete what the internal topic has from before it, while a node gets nothing. The replicas
        of this node start over, and meet runs that begin after their position."""
        world = self._world
        machine = world.machines[self._random.choice(sorted(world.machines))]
        world.note(f"{machine.host} gets nothing, and then only late runs")
        machine.feed.stalled = True
        job = world.jobs.start()
        seconds = self._random.uniform(1, 4)
        self._until(seconds, partial(self._delete_before_last_run, job))
        self._until(seconds + 0.5, partial(setattr, machine.feed, "stalled", False))

    def _delete_before_last_run(self, job: RekeyJob) -> None:
        topic = self._world.ingested
        for partition in range(topic.partitions):
            start = last_late_start(topic, partition)
            if start is not None:
                self._world.note(f"the internal partition {partition} begins at {start}")
                topic.truncate(partition, start)
        self._end_second(job)

    def _truncate(self) -> None:
        """Delete the first records of an internal partition, as someone with another tool may."""
        ingested = self._world.ingested
        partition = self._random.randrange(ingested.partitions)
        ingested.truncate(partition, self._random.randint(0, ingested.end(partition)))
        self._world.note(f"the internal partition {partition} begins at {ingested.starts[partition]}")

    def _compact(self) -> None:
        topic = self._world.topic
        for partition in range(topic.partitions):
            topic.compact(partition, self._random.randint(0, topic.end(partition)))
        self._world.note("the source is compacted")
