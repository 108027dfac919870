"""Who could have answered a read that failed."""

from __future__ import annotations

from collections.abc import Mapping

from tests.simulation.checks import Wish
from tests.simulation.nodes import host_of
from tests.simulation.world import CLIENT, PLACER, World

_SETTLING_SECONDS = 5.0  # after that a node that could hear of everything has
_SLACK_MS = 700  # a lag grows between two looks at the log's end


def able(world: World, key: bytes, wish: Wish, now: float) -> dict[int, object]:
    """The nodes that could answer now from what they have: by ordinal, the copy."""
    if wish.consistency not in ("bounded",) or world.mixed:
        return {}
    partition = world.topic.partition_of(key)
    found: dict[int, object] = {}
    for ordinal, machine in world.machines.items():
        if machine.node is None:
            continue
        replica = machine.node.replicas.by_partition.get(partition)
        if replica is not None and replica._recovered_at is not None and replica._recovered_at >= now:
            continue  # its store was opened again meanwhile
        if (
            replica is None
            or not replica.complete
            or replica.failed is not None
            or replica.absent is not None
        ):
            continue
        if replica.store.on_disk.spoilt:  # type: ignore[attr-defined]
            continue
        if wish.max_lag_ms is not None:
            then = world.scheduler.now - (wish.max_lag_ms - _SLACK_MS) / 1000
            if world.topic.away or max(0, replica.position) < world.topic.end_at(partition, then):
                continue
            now_ms = int(world.scheduler.monotonic() * 1000)
            if now_ms - replica.fresh_as_of_ms > wish.max_lag_ms - _SLACK_MS:
                continue
        found[ordinal] = replica
    return found


def may_not_fail(
    world: World, ordinal: int, key: bytes, before: Mapping[int, object], wish: Wish, began: float
) -> bool:
    """Whether somebody could have answered throughout a read of this node."""
    asked, partition = world.machines.get(ordinal), world.topic.partition_of(key)
    if asked is None or asked.node is None or not world.weather.connected(CLIENT, asked.host, began):
        return False
    after = able(world, key, wish, began)
    placement = asked.node.placement
    for other, replica in before.items():
        if after.get(other) is not replica or not world.weather.connected(asked.host, host_of(other), began):
            continue
        if other == ordinal or other in placement.serving[partition]:
            return True
        settled = began - _SETTLING_SECONDS
        hosts = [host_of(o) for o in range(len(world.placement.addresses))]
        if world.weather.connected(asked.host, PLACER, settled) and all(
            world.weather.connected(asked.host, host, settled) for host in hosts
        ):
            return True
    return False
