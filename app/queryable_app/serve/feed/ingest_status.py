"""Keep the state that ingest last reported."""

from __future__ import annotations

from dataclasses import dataclass

from queryable_app.platform.clock import monotonic_ms
from queryable_app.platform.log import event
from queryable_app.wire.ingest_failures import IngestFailure


@dataclass(slots=True)
class IngestStatus:
    """The state of ingest, for status and readiness."""

    state: str = "absent"  # no ingest is connected
    mode: str = ""
    detail: str = ""
    pid: int = 0
    starts: int = 0
    since_ms: int = 0  # of the state, a moment of `platform/clock.py`
    failure: IngestFailure | None = None
    """A failure that no retry repairs. It stays over restarts of ingest, until ingest gets further than before."""

    def enter(self, state: str, detail: str = "") -> None:
        """Set the state, and log a change."""
        if state != self.state:
            self.since_ms = monotonic_ms()
            event("ingest", state=state, detail=detail)
        self.state, self.detail = state, detail
