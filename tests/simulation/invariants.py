"""Check what must hold at every moment of a world: no replica is lost, no epoch decreases, and failed replicas are repaired."""

from __future__ import annotations

from typing import TYPE_CHECKING

from queryable_app.placement.assignment import Placement
from tests.simulation.checks import GuaranteeBroken
from tests.simulation.disks import Rows
from tests.simulation.nodes import PLACER, host_of

if TYPE_CHECKING:
    from tests.simulation.world import World

_REPORT_SECONDS = 6.0
_REQUEST_SECONDS = 0.6
_REPAIR_SECONDS = 20.0  # a replica that cannot be opened is fetched by then if another replica exists


class Invariants:
    def __init__(self, world: World) -> None:
        self.violations: list[BaseException] = []
        """Violations that were found where they could not be raised."""
        self.destroyed: set[int] = set()
        """Partitions whose complete replicas were all destroyed by faults."""
        self._destroyed_at = 0.0
        self._world = world
        self._epochs: dict[int, int] = {}
        self._created: dict[tuple[int, int], list[float]] = {}
        self._failed_since: dict[tuple[int, int], float] = {}

    def note_violation(self, what: str) -> None:
        self._world.note(what)
        self.violations.append(GuaranteeBroken(what))

    # Replicas on disks.

    def note_creation(self, rows: Rows) -> None:
        """Note that the running process has created a replica."""
        process = self._world.scheduler.running
        assert process is not None
        ordinal = int(process.name.removeprefix("node"))
        self._created.setdefault((ordinal, rows.identity.partition), []).append(self._world.scheduler.now)

    def undo_creation(self, ordinal: int, partition: int) -> None:
        """Note that a replica is again what it was before it was emptied last, because its machine lost power."""
        created = self._created.get((ordinal, partition), [])
        del created[-1:]

    def possible_creation_times(self, ordinal: int, began: float) -> dict[int, list[float]]:
        """Return the times at which the replicas that answered a read may have been created."""
        possible: dict[int, list[float]] = {}
        for (node, partition), moments in self._created.items():
            if node == ordinal:
                before = [moment for moment in moments if moment <= began]
                possible[partition] = before[-1:] + moments[len(before) :]
        return possible

    def complete_on_disk(self) -> dict[int, set[int]]:
        """Return, by partition, the machines whose disks have a replica that was once complete.

        A replica with corrupt rows counts until a read finds them: neither its node nor the controller can know before.
        """
        world = self._world
        replicas: dict[int, set[int]] = {partition: set() for partition in range(world.partitions)}
        for machine in world.machines.values():
            for rows in world.disks.below(machine.data_dir):
                if rows.state.complete and not rows.damaged and not rows.found_corrupt:
                    replicas[rows.identity.partition].add(machine.ordinal)
        return replicas

    def complete_replicas(self) -> dict[int, set[int]]:
        """Return the complete replicas that the present placement serves."""
        serving = self._world.placement.serving
        return {p: there & {*serving[p]} for p, there in self.complete_on_disk().items()}

    def note_destruction(self) -> None:
        """Note that a fault has destroyed replicas, or that a read has found one to be corrupt."""
        self.destroyed |= {partition for partition, there in self.complete_replicas().items() if not there}
        self._destroyed_at = self._world.scheduler.now

    # Checks.

    def check_machines(self) -> None:
        for ordinal, machine in self._world.machines.items():
            if machine.node is not None:
                self.check_epoch(ordinal, machine.node.placement.epoch)
                for partition, replica in machine.node.replicas.by_partition.items():
                    self._check_repair(ordinal, partition, replica.failed)
        if not self._world.ready:
            return
        for partition, there in self.complete_replicas().items():
            if there:
                self.destroyed.discard(partition)
            elif partition not in self.destroyed:
                raise GuaranteeBroken(f"no complete replica of partition {partition} is left")

    def _check_repair(self, ordinal: int, partition: int, failed: str | None) -> None:
        since = self._failed_since.setdefault((ordinal, partition), self._world.scheduler.now)
        if failed is None:
            del self._failed_since[ordinal, partition]
        elif self._world.scheduler.now - since > _REPAIR_SECONDS:
            raise GuaranteeBroken(f"{host_of(ordinal)} failed partition {partition}: {failed}")

    def check_epoch(self, ordinal: int, epoch: int) -> None:
        before = self._epochs.get(ordinal, 0)
        if epoch < before:
            self.note_violation(f"{host_of(ordinal)} went back from epoch {before} to {epoch}")
        self._epochs[ordinal] = epoch

    def forget_epoch(self, ordinal: int) -> None:
        """Accept any epoch of a machine whose disk was replaced."""
        self._epochs.pop(ordinal, None)

    def check_step(self, before: Placement, placement: Placement) -> None:
        if placement.epoch != before.epoch + 1:
            self.note_violation(f"epoch {before.epoch} is followed by {placement.epoch}")
        if not self._world.ready:
            return
        report_may_be_old = self._report_may_be_old()
        for partition, there in self.complete_on_disk().items():
            if there & {*before.serving[partition]} and not there & {*placement.serving[partition]}:
                if report_may_be_old:
                    self.destroyed.add(partition)
                else:
                    self.note_violation(
                        f"epoch {placement.epoch} removes the last complete replica of {partition}"
                    )

    def _report_may_be_old(self) -> bool:
        """Tell whether the controller's report of a replica may be older than its destruction."""
        now = self._world.scheduler.now
        since = now - self._destroyed_at
        hosts = [machine.host for machine in self._world.machines.values()]
        links = [link for host in hosts for link in ((host, PLACER), (PLACER, host))]
        whole = all(self._world.reachability.unchanged(link, now - _REPORT_SECONDS) for link in links)
        return since < _REQUEST_SECONDS or (since < _REPORT_SECONDS and not whole)
