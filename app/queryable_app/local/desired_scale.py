"""How many nodes and copies a run shall have: what `qtopic scale` and `qtopic standby` leave in the data directory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

DESIRED_SCALE_FILE: Final = "wanted.json"
NODES_MAX: Final = 64
STANDBY_MAX: Final = 9


@dataclass(frozen=True, slots=True)
class DesiredScale:
    nodes: int
    standby: int

    @property
    def replicas(self) -> int:
        return 1 + self.standby

    def refusal(self) -> str | None:
        """Why it cannot be, and what to do; None when it can."""
        if not 1 <= self.nodes <= NODES_MAX:
            return f"a run has 1 to {NODES_MAX} nodes, not {self.nodes}: Ctrl-C in `qtopic run` stops all of them"
        if not 0 <= self.standby <= STANDBY_MAX:
            return f"a partition has 0 to {STANDBY_MAX} standby copies, not {self.standby}"
        if self.replicas > self.nodes:
            return (
                f"{self.replicas} copies of a partition need {self.replicas} nodes, one each, and not {self.nodes}: "
                f"run `qtopic scale {self.replicas}` or `qtopic standby {self.nodes - 1}` first"
            )
        return None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(raw: Mapping[str, Any]) -> DesiredScale:
        return DesiredScale(int(raw["nodes"]), int(raw["standby"]))
