"""Describe the desired number of nodes and standby replicas of a run.

`qtopic scale` and `qtopic standby` write it to the data directory, and the run follows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

DESIRED_SCALE_FILE: Final = "wanted.json"
NODES_MAX: Final = 64
STANDBY_MAX: Final = 9


@dataclass(frozen=True, slots=True)
class DesiredScale:
    """Hold the desired number of nodes, and of standby replicas of each partition."""

    nodes: int
    standby: int

    @property
    def replicas(self) -> int:
        """The number of replicas of each partition, with the active one."""
        return 1 + self.standby

    def refusal(self) -> str | None:
        """Return why a run cannot have this scale, and what to do; None if it can."""
        if not 1 <= self.nodes <= NODES_MAX:
            return f"a run has 1 to {NODES_MAX} nodes, not {self.nodes}: Ctrl-C in `qtopic run` stops all of them"
        if not 0 <= self.standby <= STANDBY_MAX:
            return f"a partition has 0 to {STANDBY_MAX} standby replicas, not {self.standby}"
        if self.replicas > self.nodes:
            return (
                f"{self.replicas} replicas of a partition need {self.replicas} nodes, and the run would have "
                f"{self.nodes}: run `qtopic scale {self.replicas}` or `qtopic standby {self.nodes - 1}` first"
            )
        return None

    def __str__(self) -> str:
        nodes = "1 node" if self.nodes == 1 else f"{self.nodes} nodes"
        standby = "1 standby replica" if self.standby == 1 else f"{self.standby} standby replicas"
        return f"{nodes} and {standby} of each partition"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(raw: Mapping[str, Any]) -> DesiredScale:
        return DesiredScale(int(raw["nodes"]), int(raw["standby"]))
