"""Run the nodes of one machine: one for each address of the placement, which follows the desired scale.

Strategy: `tick` never waits. A new node starts with a placement in which it builds replicas, and is announced to clients when it
answers. A node that hosts nothing any more is no longer announced. It is stopped after clients had time to read that, and its
data is removed.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from queryable_app.local.data_directory import DataDirectory
from queryable_app.local.desired_scale import DESIRED_SCALE_FILE, DesiredScale
from queryable_app.local.nodes import Node, new_address, node_settings
from queryable_app.local.placement_controller import PlacementController
from queryable_app.local.processes import Process
from queryable_app.placement.assignment import DesiredPlacement, Placement

_NOTICE_SECONDS: Final = 2.0
_STOP_SECONDS: Final = 15.0


class LocalCluster:
    """Own the nodes of a run, whose processes start at once."""

    def __init__(
        self,
        name: str,
        spec: Mapping[str, Any],
        data: DataDirectory,
        placement: Placement,
        desired: DesiredScale,
        port: int,
    ) -> None:
        self._name, self._spec, self._data, self._port = name, spec, data, port
        self.desired = desired
        self.nodes: list[Node] = []
        self._announced = 0
        self._removed: list[_RemovedNode] = []
        data.remove(DESIRED_SCALE_FILE)
        data.remove_nodes_from(len(placement.addresses))
        self._controller = PlacementController(data, placement, _placement_of(desired, placement.addresses))
        self._start_nodes()

    @property
    def starting(self) -> list[Node]:
        """The nodes that have not answered yet."""
        return self.nodes[self._announced :]

    @property
    def processes(self) -> list[Process]:
        nodes = [*self.nodes, *(removed.node for removed in self._removed)]
        return [supervised.process for node in nodes for supervised in node.supervised]

    def tick(self) -> list[str]:
        """Advance every node, and return what has happened as lines."""
        events = [line for node in self.nodes for each in node.supervised if (line := each.supervise())]
        events += self._controller.tick()
        events += self._follow_desired_scale()
        self._start_nodes()
        while self._announced < len(self.nodes) and self._controller.follows_newest(self._announced):
            self._announced += 1
        events += self._remove_empty_nodes()
        return events

    def describe(self) -> dict[str, Any]:
        """Return what `run.json` says about the nodes and the placement."""
        placement, replicas = self._controller.placement, self.desired.replicas
        assigned = [len(s) + len(h) for s, h in zip(placement.serving, placement.hydrating, strict=True)]
        return {
            "nodes": [node.describe() for node in self.nodes[: self._announced]],
            "placement": {
                "epoch": placement.epoch,
                "settled": self._controller.settled and not self.starting and not self._removed,
                **self.desired.to_json(),
                "toBuild": sum(map(len, placement.hydrating)),
                "toLetGo": sum(max(0, count - replicas) for count in assigned),
            },
        }

    def close(self) -> None:
        self._controller.close()

    def _start_nodes(self) -> None:
        placement = self._controller.placement
        for ordinal in range(len(self.nodes), len(placement.addresses)):
            settings = node_settings(f"{self._name}-{ordinal}", ordinal, self._spec, placement, self._data)
            self.nodes.append(Node(settings, self._data))

    def _follow_desired_scale(self) -> Iterator[str]:
        """Follow a requested scale, unless nodes are being removed: a new node may take the ordinal of one of them."""
        addresses = self._controller.placement.addresses
        if self._removed or len(self.nodes) > len(addresses):
            return
        desired = self._requested_scale()
        if desired is None or desired == self.desired or desired.refusal():
            return
        self.desired = desired
        more = tuple(new_address(self._port, ordinal) for ordinal in range(len(addresses), desired.nodes))
        self._controller.set_desired(_placement_of(desired, addresses + more))
        yield f"Scaling to {desired}"

    def _requested_scale(self) -> DesiredScale | None:
        try:
            raw = self._data.read(DESIRED_SCALE_FILE)
            return None if raw is None else DesiredScale.from_json(raw)
        except (ValueError, KeyError, TypeError):  # written by hand
            return None

    def _remove_empty_nodes(self) -> Iterator[str]:
        nodes = len(self._controller.placement.addresses)
        if len(self.nodes) > nodes and self._controller.followed:
            for node in self.nodes[nodes:]:
                self._removed.append(_RemovedNode(node, self._data))
                yield f"{node.name} hosts no replicas any more and is stopped"
            del self.nodes[nodes:]
            self._announced = min(self._announced, nodes)
        self._removed = [removed for removed in self._removed if not removed.tick()]


class _RemovedNode:
    """Stop a node's processes step by step, then remove its data."""

    def __init__(self, node: Node, data: DataDirectory) -> None:
        self.node = node
        self._data = data
        self._since = time.monotonic()
        self._terminated = False

    def tick(self) -> bool:
        """Take the next step, and return whether the node is gone."""
        passed = time.monotonic() - self._since
        processes = [supervised.process for supervised in self.node.supervised]
        if passed < _NOTICE_SECONDS:
            return False
        if not self._terminated:
            self._terminated = True
            for process in processes:
                process.terminate()
        if any(p.exit_code is None for p in processes) and passed < _NOTICE_SECONDS + _STOP_SECONDS:
            return False
        for process in processes:
            process.kill()
        shutil.rmtree(self._data.node_data(self.node.ordinal), ignore_errors=True)
        return True


def _placement_of(desired: DesiredScale, addresses: tuple[str, ...]) -> DesiredPlacement:
    return DesiredPlacement(addresses[: desired.nodes], desired.replicas)
