"""Test which replicas the simulation takes for complete, and which reads must be answered."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from queryable_app.errors import Failure
from queryable_app.placement.assignment import Placement
from queryable_app.serve.store.shared_memory import SharedMemory
from queryable_app.wire.disk_format import Identity, ReplicaState
from tests.simulation.checks import ReadRequest
from tests.simulation.disks import SimulatedStore
from tests.simulation.nodes import APPLICATION_ID, Machine
from tests.simulation.readable_replicas import begin_read, must_be_answered
from tests.simulation.world import World

PARTITION = 0
KEYS = [b"key-%d" % number for number in range(10)]


@pytest.fixture
def world() -> Iterator[World]:
    world = World(0, "latest")
    world.start_placer()
    yield world
    world.close()


def test_corrupt_replica_is_complete_until_a_read_finds_it(world: World) -> None:
    """The last replica counts as destroyed once a read of its node meets a corrupt row, and not before."""
    ordinal = world.placement.serving[PARTITION][0]
    store = _complete_store(world, ordinal)
    store.on_disk.corrupt_keys = True
    assert world.invariants.complete_on_disk()[PARTITION] == {ordinal}
    assert PARTITION not in world.invariants.destroyed
    with pytest.raises(Failure):
        store.multi_get(KEYS)
    assert world.invariants.complete_on_disk()[PARTITION] == set()
    assert PARTITION in world.invariants.destroyed


def test_restarted_node_has_not_found_corrupt_rows_yet(world: World) -> None:
    """A store that is opened again counts as complete until a read meets a corrupt row again."""
    ordinal = world.placement.serving[PARTITION][0]
    store = _complete_store(world, ordinal)
    store.on_disk.corrupt_keys = True
    with pytest.raises(Failure):
        store.multi_get(KEYS)
    _complete_store(world, ordinal)
    assert world.invariants.complete_on_disk()[PARTITION] == {ordinal}


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [((0,), (0,), True), ((1,), (0,), False), ((0,), (1,), False)],
    ids=["throughout", "learned late", "moved away"],
)
def test_node_that_was_cut_off_must_answer_only_by_the_placement_it_had(
    world: World, first: tuple[int, ...], last: tuple[int, ...], expected: bool
) -> None:
    """A node that was cut off must reach a replica whose node serves in its placement from the read's beginning to its end."""
    asked, other, key = 2, 0, KEYS[0]
    partition = world.topic.partition_of(key)

    def placement(epoch: int, serving: tuple[int, ...]) -> Placement:
        every = (serving,) * world.partitions
        return Placement(epoch, APPLICATION_ID, world.wanted.addresses, every, ((),) * world.partitions)

    store = _complete_store(world, other, partition)
    replica: Any = SimpleNamespace(_recovered_at=None, complete=True, failed=None, absent=None, store=store)
    node: Any = SimpleNamespace(
        placement=placement(1, first), replicas=SimpleNamespace(by_partition={partition: replica})
    )
    world.machines[other].node = node
    node = SimpleNamespace(placement=placement(1, first), replicas=SimpleNamespace(by_partition={}))
    _machine(world, asked).node = node
    world.mixed = False
    world.cut("node1", f"node{asked}")
    world.mend("node1", f"node{asked}")
    read = begin_read(world, asked, key, ReadRequest(), world.scheduler.now)
    node.placement = placement(2, last)
    assert must_be_answered(world, read) is expected


def _machine(world: World, ordinal: int) -> Machine:
    machine = world.machines.get(ordinal) or Machine(world.directory, ordinal, "murmur2")
    world.machines[ordinal] = machine
    return machine


def _complete_store(world: World, ordinal: int, partition: int = PARTITION) -> SimulatedStore:
    """Open the store of a replica, and write every key."""
    path = _machine(world, ordinal).data_dir / APPLICATION_ID / f"p{partition:04d}"
    memory: Any = SharedMemory
    store = world.disks.open(path, Identity(APPLICATION_ID, "users", partition), memory)
    store.apply([(key, b"") for key in KEYS], ReplicaState(position=1, complete=True))
    return store
