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
import pytest

import queryable_app.serve.api.changes
import queryable_app.serve.api.peer_reads
import queryable_app.serve.feed.entry_rows
import queryable_app.serve.feed.logged_changes
import queryable_app.serve.kafka.end_offsets
import queryable_app.serve.kafka.gaps
import queryable_app.serve.node
import queryable_app.serve.reads.covered_reads
import queryable_app.serve.reads.peer_reads
import queryable_app.serve.reads.scans
import queryable_app.serve.replication.replica_builder
import queryable_app.serve.store.replica
import queryable_app.serve.store.replica_changes
from queryable_app.platform import clock as platform_clock
from queryable_app.platform import running_time
from queryable_app.policy import failure_detector
from queryable_app.policy.attempts import Attempts, HedgeBudget, Step
from queryable_app.serve.feed.logged_changes import CHANGES_RETENTION_MS
from queryable_app.serve.store.store import Store
from tests.simulation.disks import SimulatedStore
from tests.simulation.topic import TopicConsumer
from tests.simulation.world import World


@contextmanager
def inside(world: World) -> Iterator[None]:
    """Replace the product's clocks, disks, Kafka and log by the world's within the block."""
    with (
        pytest.MonkeyPatch.context() as patch,
        _errors_noted(world),
        _generators_ended(world),
        _caches_cleared(),
    ):
        _replace_clocks_and_events(patch, world)
        # With 1 the nodes of a world take turns, as those of a large view do.
        heartbeats = world.rng("heartbeats").choice((failure_detector.HEARTBEATS_PER_TICK_MAX, 1))
        patch.setattr(failure_detector, "HEARTBEATS_PER_TICK_MAX", heartbeats)
        _replace_disks_and_kafka(patch, world)
        _count_hedges(patch, world)
        yield


def _replace_clocks_and_events(patch: pytest.MonkeyPatch, world: World) -> None:
    def event(name: str, **fields: object) -> None:
        world.note_event(name, fields)

    monotonic, wall_ns = world.scheduler.monotonic, world.scheduler.wall_ns
    replacements: dict[Any, Callable[..., Any]] = {
        time.time_ns: wall_ns,
        time.monotonic: monotonic,
        platform_clock.monotonic_ms: lambda: int(monotonic() * 1000),
        running_time.running_seconds: monotonic,
        time.time: lambda: wall_ns() / 1e9,
        sys.modules["queryable_app.platform.log"].event: event,
    }
    for name, module in list(sys.modules.items()):
        if name == "time" or name.startswith("queryable_app."):
            for attribute, value in list(vars(module).items()):
                if callable(value) and value.__hash__ is not None and value in replacements:
                    patch.setattr(module, attribute, replacements[value])


def _replace_disks_and_kafka(patch: pytest.MonkeyPatch, world: World) -> None:
    def consumer(**_: Any) -> TopicConsumer:
        return TopicConsumer(world.topics, world.rng("kafka"))

    def open_store(path: Path, identity: Any, memory: Any, *families: Any) -> Any:
        return world.disks.open(path, identity, memory, *families)

    world.disks.note_creation = world.invariants.note_creation
    world.disks.note_loss = world.invariants.note_destruction
    for module in (queryable_app.serve.kafka.end_offsets, queryable_app.serve.kafka.gaps):
        patch.setattr(module, "AIOKafkaConsumer", consumer)
    # The few rows of a world come in several batches, as many rows do.
    patch.setattr(queryable_app.serve.reads.scans, "BATCH_ROWS", 4)
    for peer_reads in (queryable_app.serve.api.peer_reads, queryable_app.serve.reads.peer_reads):
        patch.setattr(peer_reads, "ROWS_MAX", 5)
    # Changes leave the log within a world, and a follower gets them in several portions.
    retention_ms = world.rng("changes").choice((CHANGES_RETENTION_MS, 8_000))
    for logging_changes in (queryable_app.serve.feed.logged_changes, queryable_app.serve.node):
        patch.setattr(logging_changes, "CHANGES_RETENTION_MS", retention_ms)
    patch.setattr(queryable_app.serve.store.replica_changes, "ENTRIES_MAX", 7)
    patch.setattr(queryable_app.serve.feed.entry_rows, "_DELETED_SINGLY_MAX", 3)
    patch.setattr(queryable_app.serve.api.changes, "_PAGE_ROWS", 20)
    patch.setattr(queryable_app.serve.reads.covered_reads, "_FIRST_ROWS_MIN", 1)
    patch.setattr(Store, "open", staticmethod(open_store))
    patch.setattr(Store, "clear", SimulatedStore.clear)  # which a replica calls by its class
    patch.setattr(queryable_app.serve.replication.replica_builder, "probe", world.disks.probe)
    patch.setattr(queryable_app.serve.store.replica, "random", world.rng("jitter").random)


def _count_hedges(patch: pytest.MonkeyPatch, world: World) -> None:
    note, step = HedgeBudget.note_requests, Attempts.step

    def counted_note(self: HedgeBudget, count: int) -> None:
        note(self, count)
        world.hedges.note_requests(self, count)

    def counted_step(self: Attempts, now: float) -> Step:
        taken = step(self, now)
        world.hedges.note_step(self._budget, taken)
        return taken

    patch.setattr(HedgeBudget, "note_requests", counted_note)
    patch.setattr(Attempts, "step", counted_step)


@contextmanager
def _errors_noted(world: World) -> Iterator[None]:
    logger, handler = logging.getLogger("uvicorn.error"), _ErrorLog(world)
    logger.propagate = False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = True


@contextmanager
def _generators_ended(world: World) -> Iterator[None]:
    """End an unfinished asynchronous generator in the process that runs when it is collected."""

    def end(generator: Any) -> None:
        process = world.scheduler.running
        if process is not None:
            process.create_task(generator.aclose())

    hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(firstiter=lambda generator: None, finalizer=end)
    try:
        yield
    finally:
        sys.set_asyncgen_hooks(*hooks)


@contextmanager
def _caches_cleared() -> Iterator[None]:
    """Clear FastAPI's caches, which refer to every endpoint, and through it to its world."""
    try:
        yield
    finally:
        for cached in vars(fastapi.dependencies.models).values():
            if hasattr(cached, "cache_clear"):
                cached.cache_clear()


class _ErrorLog(logging.Handler):
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
