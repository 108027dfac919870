"""Test stores whose writes fail for a while: reads continue, and the stores recover by themselves."""

from __future__ import annotations

import resource
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.support.serve_process import FakeIngest, ServeProcess, key_of, serve_process
from tests.support.waiting import eventually

FIRST, LAST = 20, 1200


def no_descriptors(served: ServeProcess) -> AbstractContextManager[None]:
    return served.without_descriptors()


def no_room(served: ServeProcess) -> AbstractContextManager[None]:
    """Fail every write of a file beyond its first bytes, as a full disk does."""
    return served.limited(resource.RLIMIT_FSIZE, 4096)


def answer(served: ServeProcess, key: str) -> int:
    return served.client.get(f"/v1/keys/{key}?consistency=any").status_code


@pytest.mark.parametrize("take_away", [no_descriptors, no_room])
def test_store_that_refused_writes_continues_from_its_position(
    tmp_path: Path, take_away: Callable[[ServeProcess], AbstractContextManager[None]]
) -> None:
    """While writes fail, reads continue and status has the reason and the next attempt. Afterwards every
    record is in the store."""
    with serve_process(tmp_path) as served, FakeIngest(served) as ingest:
        ingest.ends = {0: FIRST, 1: FIRST}
        eventually(
            "the first records", lambda: [p["position"] for p in served.partitions()] == [FIRST, FIRST]
        )

        with take_away(served):
            ingest.ends = {0: LAST, 1: LAST}
            eventually("writes fail", lambda: all(p["retrying"] for p in served.partitions()))
            partition = served.partitions()[0]
            assert "cannot be written" in partition["retrying"]["reason"]
            assert partition["retrying"]["nextAttemptMs"] <= 30_000
            assert (partition["phase"], partition["failed"]) == ("retrying", None)
            assert answer(served, key_of(0, 1, 2)) == 200
            assert served.client.get("/readyz").json()["retrying"].keys() == {"0", "1"}

        eventually("all records", lambda: [p["position"] for p in served.partitions()] == [LAST, LAST])
        assert [(p["retrying"], p["failed"], p["rows"]) for p in served.partitions()] == [
            (None, None, LAST)
        ] * 2
        assert answer(served, key_of(1, LAST - 1, 2)) == 200
        assert {e["partition"] for e in served.events("store-recovered")} == {0, 1}


def test_reads_continue_until_the_store_can_be_reopened(tmp_path: Path) -> None:
    """The store is closed only once opening it again is certain to succeed."""
    with serve_process(tmp_path, 1) as served, FakeIngest(served, 1) as ingest:
        ingest.ends = {0: FIRST}
        eventually("the first records", lambda: served.partitions()[0]["position"] == FIRST)

        with no_room(served):
            ingest.ends = {0: LAST}
            eventually(
                "three attempts", lambda: (served.partitions()[0]["retrying"] or {}).get("attempts", 0) >= 3
            )
            assert served.partitions()[0]["absent"] is None
            assert answer(served, key_of(0, 1, 1)) == 200
