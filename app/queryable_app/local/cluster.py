"""The nodes of a run: one for each address of its placement, which goes where it is wanted.

Strategy: `tick` is called again and again, and never waits. A new node starts with a placement that gives it copies to
build, and is named to clients when it answers. One that holds nothing any more is named no longer, and stopped when
clients have had time to read that; then its data goes.
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
    """Its processes run from the moment it is made."""

    def __init__(
        self,
        name: str,
        spec: Mapping[str, Any],
        data: DataDirectory,
        placement: Placement,
        wish: DesiredScale,
        port: int,
    ) -> None:
        self._name, self._spec, self._data, self._port = name, spec, data, port
        self.wish = wish
        self.nodes: list[Node] = []
        self._named = 0
        self._leaving: list[_Leaving] = []
        data.forget(DESIRED_SCALE_FILE)
        data.forget_nodes_from(len(placement.addresses))
        self._placer = PlacementController(data, placement, _wanted(placement.addresses, wish))
        self._start_nodes()

    @property
    def silent(self) -> list[Node]:
        """Those that have not answered yet."""
        return self.nodes[self._named :]

    @property
    def processes(self) -> list[Process]:
        nodes = [*self.nodes, *(leaving.node for leaving in self._leaving)]
        return [kept.process for node in nodes for kept in node.kept]

    def tick(self) -> list[str]:
        """What has happened since the last time, in words."""
        happened = [said for node in self.nodes for kept in node.kept if (said := kept.supervise())]
        happened += self._placer.tick()
        happened += self._take_up_wish()
        self._start_nodes()
        while self._named < len(self.nodes) and self._placer.follows_newest(self._named):
            self._named += 1
        happened += self._part_with_empty_nodes()
        return happened

    def describe(self) -> dict[str, Any]:
        """For `run.json`."""
        placement, replicas = self._placer.placement, self.wish.replicas
        listed = [len(s) + len(h) for s, h in zip(placement.serving, placement.hydrating, strict=True)]
        return {
            "nodes": [node.describe() for node in self.nodes[: self._named]],
            "placement": {
                "epoch": placement.epoch,
                "settled": self._placer.settled and not self.silent and not self._leaving,
                **self.wish.to_json(),
                "toBuild": sum(map(len, placement.hydrating)),
                "toLetGo": sum(max(0, count - replicas) for count in listed),
            },
        }

    def close(self) -> None:
        self._placer.close()

    def _start_nodes(self) -> None:
        placement = self._placer.placement
        for ordinal in range(len(self.nodes), len(placement.addresses)):
            settings = node_settings(f"{self._name}-{ordinal}", ordinal, self._spec, placement, self._data)
            self.nodes.append(Node(settings, self._data))

    def _take_up_wish(self) -> Iterator[str]:
        """Not while nodes leave: a new one may need the place of one of them."""
        addresses = self._placer.placement.addresses
        if self._leaving or len(self.nodes) > len(addresses):
            return
        wish = self._read_wish()
        if wish is None or wish == self.wish or wish.refusal():
            return
        self.wish = wish
        more = tuple(new_address(self._port, ordinal) for ordinal in range(len(addresses), wish.nodes))
        self._placer.follow(_wanted(addresses + more, wish))
        yield f"Wanted now: {wish.nodes} nodes, {wish.standby} standby copies of each partition"

    def _read_wish(self) -> DesiredScale | None:
        try:
            raw = self._data.read(DESIRED_SCALE_FILE)
            return None if raw is None else DesiredScale.from_json(raw)
        except (ValueError, KeyError, TypeError):  # someone wrote it by hand
            return None

    def _part_with_empty_nodes(self) -> Iterator[str]:
        nodes = len(self._placer.placement.addresses)
        if len(self.nodes) > nodes and self._placer.known:
            for node in self.nodes[nodes:]:
                self._leaving.append(_Leaving(node, self._data))
                yield f"{node.name} holds nothing any more and is stopped"
            del self.nodes[nodes:]
            self._named = min(self._named, nodes)
        self._leaving = [leaving for leaving in self._leaving if not leaving.gone()]


class _Leaving:
    """A node on its way out."""

    def __init__(self, node: Node, data: DataDirectory) -> None:
        self.node = node
        self._data = data
        self._since = time.monotonic()
        self._asked = False

    def gone(self) -> bool:
        """To be called again and again: asks its processes to end, later kills them, then takes the data away."""
        passed = time.monotonic() - self._since
        processes = [kept.process for kept in self.node.kept]
        if passed < _NOTICE_SECONDS:
            return False
        if not self._asked:
            self._asked = True
            for process in processes:
                process.terminate()
        if any(p.exit_code is None for p in processes) and passed < _NOTICE_SECONDS + _STOP_SECONDS:
            return False
        for process in processes:
            process.kill()
        shutil.rmtree(self._data.node_data(self.node.ordinal), ignore_errors=True)
        return True


def _wanted(addresses: tuple[str, ...], wish: DesiredScale) -> DesiredPlacement:
    return DesiredPlacement(addresses[: wish.nodes], wish.replicas)
