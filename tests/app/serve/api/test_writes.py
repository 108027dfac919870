"""Test the bounds of writes over HTTP, and that a write with an Idempotency-Key is written once, whichever node is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from queryable_app.errors import Failure, Reason
from tests.support.node_cluster import NodeCluster, three_nodes
from tests.support.served import Served, served
from tests.support.waiting import eventually


class Topic:
    """Stand in for Kafka: a log that all nodes write to. A value may ask for a failure, or for a late answer."""

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, bytes | None]] = []
        self.failures: list[Failure] = []
        self.closed = False
        """While it is closed, no record is acknowledged."""

    async def send(self, key: bytes, value: bytes | None, partition: int, deadline_seconds: float) -> int:
        while self.closed:
            await asyncio.sleep(0.01)
        if value == b'"refuse"' and self.failures:
            raise self.failures.pop()
        self.sent.append((key, value))
        return len(self.sent) - 1

    async def stop(self) -> None:
        self.closed = False


def away() -> Failure:
    return Failure(Reason.NOT_AVAILABLE, "Kafka is away", "retry", retry_after_ms=1000)


@pytest.fixture
def topic() -> Topic:
    return Topic()


@pytest.fixture
def node(tmp_path: Path, topic: Topic) -> Iterator[Served]:
    bounds = {"maxBytesPerSecond": 4096, "maxRecordBytes": 1000, "idempotencyWindow": "1h"}
    with served(tmp_path, partitions=4, read={"ingest": True, "writes": bounds}) as running:
        running.node.producer = topic  # type: ignore[assignment]
        yield running


@pytest.fixture
def http(node: Served) -> Iterator[httpx.Client]:
    with node.client() as client:
        yield client


@pytest.fixture
def cluster(tmp_path: Path, topic: Topic) -> Iterator[NodeCluster]:
    with three_nodes(tmp_path, 1, read={"ingest": True}) as nodes:
        for each in nodes.nodes:
            each.node.producer = topic  # type: ignore[assignment]
        eventually(
            "the nodes know one another", lambda: all(len(n.node.peers.others()) == 2 for n in nodes.nodes)
        )
        yield nodes


def post(http: httpx.Client, body: Any, key: str | None = None, **more: Any) -> httpx.Response:
    return http.post(
        "/v1/records", json=body, headers={} if key is None else {"idempotency-key": key}, **more
    )


def test_record_over_the_bound_is_refused(http: httpx.Client, topic: Topic) -> None:
    """The answer is 413, and names the record, its size, the bound and its field. Nothing is written."""
    answer = post(http, [{"key": "a", "value": 1}, {"key": "b", "value": "x" * 1000}])

    assert (answer.status_code, answer.json()["reason"]) == (413, "too_large")
    detail = answer.json()["detail"]
    assert detail.startswith("record 1: its key and value have 1003 bytes, and this view takes at most 1000")
    assert topic.sent == []


def test_caller_that_writes_too_much_is_refused(http: httpx.Client, topic: Topic) -> None:
    """The answer is 429 with the time to wait, and reads go on. Deletions count as their keys do."""
    body = [{"key": f"{n}", "value": "x" * 900} for n in range(9)]
    assert post(http, body).status_code == 200

    refused = post(http, {"key": "a", "value": 1})
    assert (refused.status_code, refused.json()["reason"]) == (429, "overloaded")
    assert "4096 bytes/s (spec.read.writes.maxBytesPerSecond)" in refused.json()["detail"]
    assert 0 < refused.json()["retryAfterMs"] <= 2000
    assert http.delete("/v1/records/a").status_code == 429
    assert http.get("/v1/status").status_code == 200
    assert len(topic.sent) == 9
    eventually("the caller may write again", lambda: post(http, {"key": "a", "value": 1}).status_code == 200)


def test_repeated_request_gets_the_same_answer(http: httpx.Client, topic: Topic) -> None:
    """Nothing is written again: not for one record, not for several, and not for a deletion."""
    many = [{"key": "a", "value": 1}, {"key": "b", "value": 2}]
    first = [post(http, many[0], "k-1"), post(http, many, "k-2")]
    again = [post(http, many[0], "k-1"), post(http, many, "k-2")]
    deletions = [http.delete("/v1/records/a", headers={"idempotency-key": "k-3"}) for _ in range(2)]

    assert [each.json() for each in again] == [each.json() for each in first]
    assert deletions[0].json() == deletions[1].json()
    assert [key for key, _ in topic.sent] == [b"a", b"a", b"b", b"a"]


@pytest.mark.parametrize(
    "body", [{"key": "a", "value": 2}, [{"key": "a", "value": 1}, {"key": "b", "value": 1}]]
)
def test_key_of_another_request_is_refused(http: httpx.Client, topic: Topic, body: Any) -> None:
    """The answer is 400, and nothing is written. So is a deletion with the key."""
    assert post(http, {"key": "a", "value": 1}, "k").status_code == 200

    refused = post(http, body, "k")
    assert (refused.status_code, refused.json()["detail"]) == (
        400, "Idempotency-Key: was sent with other records before")  # fmt: skip
    assert http.delete("/v1/records/a", headers={"idempotency-key": "k"}).status_code == 400
    assert len(topic.sent) == 1


@pytest.mark.parametrize("headers", [[("idempotency-key", "")], [("idempotency-key", "x" * 256)],
                                     [("idempotency-key", "a"), ("idempotency-key", "b")]])  # fmt: skip
def test_idempotency_key_is_bounded(http: httpx.Client, topic: Topic, headers: list[tuple[str, str]]) -> None:
    """An empty key, a long one, and two keys are 400."""
    answer = http.post("/v1/records", json={"key": "a", "value": 1}, headers=headers)
    assert (answer.status_code, topic.sent) == (400, [])
    assert answer.json()["detail"].startswith("Idempotency-Key: is not one text of 1 to 255")


def test_write_that_kafka_confirms_late_is_not_repeated(http: httpx.Client, topic: Topic) -> None:
    """The first request ends by its deadline. The repeated one gets the position of the only record."""
    topic.closed = True
    late = post(http, {"key": "a", "value": 1}, "k", params={"deadline-ms": 50})
    assert (late.status_code, late.json()["reason"]) == (504, "deadline_exceeded")
    assert late.json()["advice"] == "send the request again with the same Idempotency-Key"

    topic.closed = False
    assert post(http, {"key": "a", "value": 1}, "k").json()["offset"] == 0
    assert topic.sent == [(b"a", b"1")]


def test_only_what_failed_is_written_again(http: httpx.Client, topic: Topic) -> None:
    """A record that Kafka refused is written by the repeated request, and so are later records of its key, in order."""
    body = [{"key": "a", "value": "refuse"}, {"key": "b", "value": 1}, {"key": "a", "value": 2}]
    topic.failures = [away()]
    first = post(http, body, "k")
    assert (first.status_code, "2 of 3 were written" in first.json()["detail"]) == (503, True)

    assert [each["offset"] for each in post(http, body, "k").json()] == [2, 0, 3]
    assert topic.sent == [(b"b", b"1"), (b"a", b"2"), (b"a", b'"refuse"'), (b"a", b"2")]


def test_all_nodes_recognize_a_key(cluster: NodeCluster, topic: Topic) -> None:
    """The same request to each node at the same time is written once."""

    def ask(node: Served) -> Any:
        with node.client() as client:
            return [post(client, {"key": f"a-{n}", "value": 1}, f"k-{n}").json() for n in range(12)]

    with ThreadPoolExecutor(3) as threads:
        answers = list(threads.map(ask, cluster.nodes))

    assert answers[0] == answers[1] == answers[2]
    assert sorted(key for key, _ in topic.sent) == sorted(f"a-{n}".encode() for n in range(12))


def test_key_of_a_lost_node_is_taken_over(cluster: NodeCluster, topic: Topic) -> None:
    """Until another node has taken over, the answer is 503 and the advice is to repeat the request. Then it is written."""
    with cluster.nodes[0].client() as client:
        cluster.stop(2)
        for number in range(12):
            body = {"key": f"a-{number}", "value": 1}

            def written(body: Any = body, number: int = number) -> bool:
                answer = post(client, body, f"k-{number}")
                assert answer.status_code == 200 or answer.json()["reason"] == "not_available", answer.text
                return answer.status_code == 200

            eventually("the record is written", written)
    assert len(topic.sent) == 12
