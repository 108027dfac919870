"""Simulate the producers."""

from __future__ import annotations

import asyncio

from tests.simulation.world import World
from tests.simulation.writer_keys import CHANGING_KEYS, STABLE_KEYS, changing_key, stable_key


class Writer:
    """Write records. Some keys are never deleted, so that every scan must have them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.rng("writer")
        self._serial = 0
        self.stopped = False

    def fill(self, updates: int) -> None:
        for number in range(STABLE_KEYS):
            self.write(stable_key(number))
        for _ in range(updates):
            self.write_any()

    def write_any(self) -> tuple[int, int]:
        """Write a record of any kind, and return its partition and offset."""
        choice = self._random.random()
        if choice < 0.04:
            self._world.topic.skip(self._random.randrange(self._world.partitions), self._random.randint(1, 4))
        if choice < 0.06:
            partition = self._random.randrange(self._world.partitions)
            self._serial += 1
            return partition, self._world.topic.append(partition, None, b"%d" % self._serial, self._now_ms())
        if choice < 0.4:
            return self.write(stable_key(self._random.randrange(STABLE_KEYS)))
        key = changing_key(self._random.randrange(CHANGING_KEYS))
        return self.write(key, deletes=self._random.random() < 0.4)

    def write(self, key: bytes, deletes: bool = False) -> tuple[int, int]:
        world = self._world
        partition = world.topic.partition_of(key)
        if world.view.kind == "keyed" and self._random.random() < 0.8:
            partition = sum(key) % world.partitions  # most record keys are in one partition
        # The records of a group lie anywhere in the source of a rekeyed view.
        elif world.view.rekeyed or (world.mixed and self._random.random() < 0.3):
            partition = self._random.randrange(world.partitions)
        self._serial += 1
        value = None if deletes else world.view.value(self._serial, self._now_ms(), self._random)
        marker = self._random.random() < 0.1
        return partition, world.topic.append(partition, key, value, self._now_ms(), marker)

    async def run(self) -> None:
        while not self.stopped:
            await asyncio.sleep(self._random.expovariate(8))
            if not self.stopped:
                self.write_any()

    def _now_ms(self) -> int:
        return self._world.scheduler.wall_ns() // 1_000_000 + self._random.randint(-40, 40)
