"""Test freshness when the wall clock steps: ages come from a monotonic clock."""

from __future__ import annotations

import time
from pathlib import Path

import httpx
import pytest

from queryable_app.platform.clock import monotonic_ms
from queryable_app.serve.reads import point as reads
from tests.support.served import served


def test_wall_clock_step_back_does_not_make_an_old_replica_fresh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While Kafka is unavailable the lag grows, although the wall clock steps back by an hour."""
    with served(tmp_path) as node:
        node.put(b"a", b"1")

        def grow_old() -> None:
            replica = node.node.replicas.by_partition[0]
            replica.note_end_offset(monotonic_ms() - 60_000, replica.position)
            replica.note_end_offset(monotonic_ms(), replica.position + 1)

        node.on_loop(grow_old)
        monkeypatch.setattr(reads, "time_ns", lambda: time.time_ns() - 3_600 * 10**9)

        answer = httpx.get(f"{node.url}/v1/keys/a", params={"max-lag-ms": 1000})
        assert (answer.status_code, answer.json()["reason"]) == (503, "not_fresh_enough")
        lag_ms = httpx.get(f"{node.url}/v1/status").json()["partitions"][0]["lagMs"]
        assert 60_000 <= lag_ms < 3_600_000


def test_monotonic_milliseconds_never_decrease() -> None:
    """A later moment is never smaller than an earlier one."""
    moments = [monotonic_ms() for _ in range(1000)]
    assert moments == sorted(moments)
