"""Keep what the rekey job last reported to this node."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class RekeyJobStatus:
    """Hold the last report. The job reports every second, so an old one means that it does not run."""

    state: str = "absent"
    detail: str = ""
    run: int = 0
    reported_at_ms: int = -1
    """A moment of `platform/clock.py`."""
