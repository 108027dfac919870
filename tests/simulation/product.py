"""Connect the product to a simulated world: its clocks, disks, Kafka and log are the world's during a run.

No decision of the product is replaced. A function that a module imports by name is replaced in that module.
"""

from __future__ import annotations

import logging
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fastapi.dependencies.models

import queryable_app.serve.api.peer_reads
import queryable_app.serve.kafka.end_offsets
import queryable_app.serve.kafka.gaps
import queryable_app.serve.reads.scans
import queryable_app.serve.replication.replica_builder
import queryable_app.serve.store.replica
from queryable_app.platform import clock as platform_clock
from queryable_app.policy.attempts import Attempts, Step
from queryable_app.serve.store.store import Store
from tests.simulation.topic import TopicConsumer
from tests.simulation.world import World


@contextmanager
def inside(world: World) -> Iterator[None]:
    """Replace the product's clocks, disks, Kafka and log by the world's within the block."""
    replaced: list[tuple[Any, str, Any]] = []

    def put(owner: Any, name: str, new: Any) -> None:
        replaced.append((owner, name, owner.__dict__[name]))
        setattr(owner, name, new)

    def consumer(**_: Any) -> TopicConsumer:
        return TopicConsumer(world.topic, world.rng("kafka"))

    def open_store(path: Path, identity: Any, memory: Any) -> Any:
        return world.disks.open(path, identity, memory)

    def event(name: str, **fields: object) -> None:
        world.heard(name, fields)

    world.disks.born = world.born
    clocks: dict[Any, Callable[[], Any]] = {
        time.time_ns: world.scheduler.wall_ns,
        time.monotonic: world.scheduler.monotonic,
        platform_clock.monotonic_ms: lambda: int(world.scheduler.monotonic() * 1000),
        time.time: lambda: world.scheduler.wall_ns() / 1e9,
    }
    real_event = sys.modules["queryable_app.platform.log"].event
    for name, module in list(sys.modules.items()):
        if name == "time" or name.startswith("queryable_app."):
            for attribute, value in list(vars(module).items()):
                if callable(value) and value.__hash__ is not None:
                    if value in clocks:
                        put(module, attribute, clocks[value])
                    elif value is real_event:
                        put(module, attribute, event)
    for module in (queryable_app.serve.kafka.end_offsets, queryable_app.serve.kafka.gaps):
        put(module, "AIOKafkaConsumer", consumer)
    # So that the few rows of this world come in several batches, as many do.
    put(queryable_app.serve.reads.scans, "BATCH_ROWS", 4)
    put(queryable_app.serve.api.peer_reads, "_ROWS_MAX", 5)
    put(Store, "open", staticmethod(open_store))
    put(queryable_app.serve.replication.replica_builder, "probe", world.disks.probe)
    put(queryable_app.serve.store.replica, "random", world.rng("jitter").random)

    begin, step = Attempts.__init__, Attempts.step

    def counted_begin(self: Attempts, *args: Any, **options: Any) -> None:
        begin(self, *args, **options)
        world.hedges.note_request(self._budget)

    def counted_step(self: Attempts, now: float) -> Step:
        taken = step(self, now)
        world.hedges.note_step(self._budget, taken)
        return taken

    put(Attempts, "__init__", counted_begin)
    put(Attempts, "step", counted_step)
    told = logging.getLogger("uvicorn.error")
    told.propagate, hears = False, _Hears(world)
    told.addHandler(hears)
    hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(
        firstiter=lambda generator: None, finalizer=lambda generator: _end(world, generator)
    )
    try:
        yield
    finally:
        sys.set_asyncgen_hooks(*hooks)
        told.removeHandler(hears)
        told.propagate = True
        for owner, name, old in reversed(replaced):
            setattr(owner, name, old)
        # FastAPI's caches keep every endpoint, and with it its world.
        for cached in vars(fastapi.dependencies.models).values():
            if hasattr(cached, "cache_clear"):
                cached.cache_clear()


class _Hears(logging.Handler):
    """Note why a request failed; requests of killed processes do not count."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        if not self._world.closing:
            error = record.exc_info[1] if record.exc_info else None
            self._world.note(
                f"{record.getMessage()} {''.join(traceback.format_exception(error)) if error else ''}"
            )


def _end(world: World, generator: Any) -> None:
    process = world.scheduler.running
    if process is not None:
        process.create_task(generator.aclose())
