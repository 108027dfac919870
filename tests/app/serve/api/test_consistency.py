"""Test the freshness of a read over HTTP: bounded, at least a position, strong, and any."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import httpx

from queryable_app.platform.kafka_clients import KafkaUnavailable
from tests.app.serve.api.problems import problem
from tests.support.served import served
from tests.support.waiting import eventually


def test_hydrating_replica_never_answers_not_found(tmp_path: Path) -> None:
    """A bounded read is not_available; a read with any finds existing rows, and reports other keys as unknown."""
    with served(tmp_path, partitions=1, complete=False) as node, node.client() as http:
        node.put(b"a", b"1")

        assert problem(http.get("/v1/keys/a"))["reason"] == "not_available"
        assert http.get("/v1/keys/a?consistency=any").json() == 1
        unknown = http.get("/v1/keys/b?consistency=any")
        assert (problem(unknown)["reason"], unknown.headers["retry-after"]) == ("not_available", "1")
        keys = http.post("/v1/multi-get?consistency=any", json={"keys": ["a", "b"]}).json()
        assert ([i["found"] for i in keys["items"]], keys["complete"], keys["missing"]) == (
            [True, None],
            False,
            [0],
        )


def test_lag_bound_is_kept(tmp_path: Path) -> None:
    """A replica that lags more than the read allows is refused with its lag."""
    with served(tmp_path, partitions=1) as node, node.client() as http:
        node.put(b"a", b"1")
        node.on_loop(lambda: node.node.replicas.by_partition[0].note_end_offset(1, 10))

        assert problem(http.get("/v1/keys/a?max-lag-records=8"))["reason"] == "not_fresh_enough"
        assert "9 records behind" in problem(http.get("/v1/keys/a?max-lag-records=8"))["detail"]
        assert http.get("/v1/keys/a?max-lag-records=9").json() == 1
        both = http.get("/v1/keys/a?max-lag-records=8&min-position=0:1")
        assert problem(both)["reason"] == "not_fresh_enough"
        assert http.get("/v1/keys/a?max-lag-records=9&min-position=0:1").json() == 1


def test_read_waits_for_its_position(tmp_path: Path) -> None:
    """An at-least read waits until the replica has the position, and is not_fresh_enough at its deadline."""
    with served(tmp_path, partitions=1) as node, node.client() as http:
        late = http.get("/v1/keys/a?min-position=0:1&deadline-ms=1000")
        assert problem(late)["reason"] == "not_fresh_enough"

        answers: list[httpx.Response] = []
        reader = threading.Thread(
            target=lambda: answers.append(http.get("/v1/keys/a?min-position=0:1&deadline-ms=10000"))
        )
        reader.start()
        eventually("it waits", lambda: node.node.counters.in_flight == 1)
        node.put(b"a", b"1")
        reader.join(10)
        assert answers[0].json() == 1


class _EndOffsets:
    """Stand in for Kafka: return end offsets, or raise KafkaUnavailable."""

    def __init__(self, ends: dict[int, int] | None) -> None:
        self.answer = ends
        self.unavailable = None

    async def latest(self, partitions: list[int]) -> dict[int, int]:
        if self.answer is None:
            raise KafkaUnavailable("no route")
        return {p: self.answer[p] for p in partitions}


def test_strong_read_waits_for_the_end_offset(tmp_path: Path) -> None:
    """A strong read, also by the view's default, answers once the replica has the end offset, and never earlier."""
    with served(tmp_path, partitions=1, read={"consistency": "strong"}) as node, node.client() as http:
        node.put(b"a", b"1")
        node.node.end_offsets = _EndOffsets({0: 1})  # type: ignore[assignment]
        assert http.get("/v1/keys/a").json() == 1
        assert node.node.counters.fast_answers == 0

        node.node.end_offsets = _EndOffsets({0: 2})  # type: ignore[assignment]
        assert problem(http.get("/v1/keys/a?deadline-ms=1000"))["reason"] == "not_fresh_enough"

        node.node.end_offsets = _EndOffsets(None)  # type: ignore[assignment]
        away = problem(http.get("/v1/keys/a"))
        assert (away["reason"], "no route" in away["detail"]) == ("not_fresh_enough", True)


def test_strong_read_of_an_empty_partition_answers_at_once(tmp_path: Path) -> None:
    """A replica without records has the end offset of an empty log."""
    with served(tmp_path, partitions=1, complete=False) as node, node.client() as http:
        node.on_loop(lambda: node.node.replicas.by_partition[0].note_end_offset(1, 0))
        node.node.end_offsets = _EndOffsets({0: 0})  # type: ignore[assignment]

        began = time.monotonic()
        answer = http.get("/v1/keys/a?consistency=strong&deadline-ms=60000")

        assert (problem(answer)["reason"], problem(answer)["position"]) == ("key_not_found", "0:0")
        assert time.monotonic() - began < 30
