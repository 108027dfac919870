"""Test writes over HTTP up to the producer. The integration tests use a real Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from queryable_app.errors import Failure, Reason
from queryable_app.wire.partitioners import partition_for
from tests.support.golden import json_values, shortened
from tests.support.served import Served, served


class _Producer:
    """Stand in for Kafka: store each record, and refuse the values that name a failure."""

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, bytes | None, int]] = []

    async def send(self, key: bytes, value: bytes | None, partition: int, deadline_seconds: float) -> int:
        if value == b'"refuse"':
            raise Failure(Reason.NOT_AVAILABLE, "Kafka is away", "retry", retry_after_ms=1000)
        self.sent.append((key, value, partition))
        return len(self.sent) - 1


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path, partitions=4, read={"ingest": True}) as running:
        running.node.producer = _Producer()  # type: ignore[assignment]
        yield running


@pytest.fixture
def http(node: Served) -> Iterator[httpx.Client]:
    with node.client() as client:
        yield client


def sent(node: Served) -> Any:
    return node.node.producer.sent  # type: ignore[attr-defined]


def test_record_is_written_to_the_partition_of_producers(node: Served, http: httpx.Client) -> None:
    """A read that names the position in the answer waits for the record."""
    answer = http.post("/v1/records", json={"key": "a", "value": {"n": [1, None]}})

    partition = partition_for(b"a", "murmur2", 4)
    assert answer.json() == {"partition": partition, "offset": 0, "position": f"{partition}:1"}
    assert sent(node) == [(b"a", b'{"n":[1,null]}', partition)]


def test_many_records_are_answered_in_order(node: Served, http: httpx.Client) -> None:
    """An array of records gets an array; a value of null is JSON's null, not a deletion."""
    answer = http.post("/v1/records", json=[{"key": "a", "value": None}, {"key": "b", "value": 1}])

    assert [item["offset"] for item in answer.json()] == [0, 1]
    assert [(key, value) for key, value, _ in sent(node)] == [(b"a", b"null"), (b"b", b"1")]


def test_delete_writes_a_tombstone(node: Served, http: httpx.Client) -> None:
    """DELETE takes any key, also the empty one."""
    assert http.delete("/v1/records/").status_code == 200
    assert http.delete("/v1/records/a%2Fb").json()["offset"] == 1

    assert [(key, value) for key, value, _ in sent(node)] == [(b"", None), (b"a/b", None)]


def test_delete_reaches_every_partition_with_the_key(node: Served, http: httpx.Client) -> None:
    """With mixed producers, older rows in other partitions do not come back when the newest tombstone expires."""
    for partition in (0, 2, 3):
        node.put(b"mixed", b"1", partition=partition)

    answer = http.delete("/v1/records/mixed")
    assert [item["partition"] for item in answer.json()] == [0, 2, 3]


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ("[]", "body"),
        ('"a"', "body"),
        ("{", "body"),
        ('{"key": "a"}', "value"),
        ('{"value": 1}', "key"),
        ('{"key": "a", "value": 1, "headers": {}}', "headers"),
        ('{"key": {"a": 1}, "value": 1}', "key"),
        ('{"key": "a", "value": NaN}', "value"),
        ('{"key": "a", "value": 1} x', "body"),
        ('{"key": "a", "value": 1, "value": 2}', "body"),
        ('[{"key": "a", "value": 1}, {"key": "b", "value": 1, "key": "c"}]', "body"),
        ('[{"key": "a", "value": 1},]', "body"),
        ('[[{"key": "a", "value": 1}]]', "body"),
        ('{"key": "a", "value": ' + "[" * 10_000, "value"),
        ('[{"key": "a", "value": 1}, 7]', "body"),
    ],
)
def test_wrong_record_is_refused(node: Served, http: httpx.Client, body: str, named: str) -> None:
    """A node names the field, and writes nothing of a batch with a wrong record."""
    answer = http.post("/v1/records", content=body)

    assert (answer.status_code, sent(node)) == (400, [])
    assert named in answer.json()["detail"].partition(":")[0]


def test_value_is_written_as_it_came(node: Served, http: httpx.Client) -> None:
    """A node checks the bytes of a value and does not rewrite them, in a record and in an array."""
    for value in json_values("good"):
        sent(node).clear()
        record = b'{"value":\n%b\t, "key" : "a"}' % value
        for body in (record, b' [ {"key":"b","value":[1]} , %b ]\n' % record):
            assert http.post("/v1/records", content=body).status_code == 200
        bare = value.strip(b" \t\r\n")
        assert [(k, v) for k, v, _ in sent(node)] == [(b"a", bare), (b"b", b"[1]"), (b"a", bare)]


def test_value_that_ingest_would_skip_is_refused(node: Served, http: httpx.Client) -> None:
    """A node acknowledges no record that ingest would treat as bad, and writes nothing of its batch."""
    for value in json_values("bad"):
        answer = http.post("/v1/records", content=b'[{"key":"b","value":1},{"key":"a","value":%b}]' % value)
        if value.count(b"[") + value.count(b"{") > 20_000:  # too many to be parsed
            assert (answer.status_code, sent(node)) == (413, [])
            continue
        assert (answer.status_code, sent(node)) == (400, []), shortened(value)
        assert answer.json()["detail"].partition(":")[0] in ("value", "body")


@pytest.mark.parametrize(
    ("value", "detail"),
    [
        ("[" * 101 + "]" * 101, "value: is nested deeper than 100"),
        ("9" * 1001, "value: has a number of more than 1000 characters"),
    ],
    ids=["depth", "digits"],
)
def test_exceeded_bound_is_named(http: httpx.Client, value: str, detail: str) -> None:
    """A node names the field and the bound that it exceeds."""
    answer = http.post("/v1/records", content=f'{{"key": "a", "value": {value}}}')
    assert (answer.status_code, answer.json()["detail"]) == (400, detail)


def test_delete_reaches_hydrating_replicas(node: Served, http: httpx.Client) -> None:
    """With mixed producers, DELETE also writes a tombstone for a hydrating replica, which may have the key."""
    node.put(b"mixed", b"1", partition=0)
    node.put(b"mixed", b"1", partition=2)
    coming = node.node.replicas.by_partition[3]
    store = node.on_loop(lambda: coming.detach_store("is being copied from another node"))
    assert store is not None
    node.on_loop(store.close)

    assert http.delete("/v1/records/mixed").status_code == 200
    assert sorted(partition for _, _, partition in sent(node)) == [0, 2, 3]


def test_batch_has_a_limit(http: httpx.Client) -> None:
    """A batch has at most 1000 records."""
    assert http.post("/v1/records", json=[{"key": "a", "value": 1}] * 1000).status_code == 200
    answer = http.post("/v1/records", json=[{"key": "a", "value": 1}] * 1001)
    assert (answer.status_code, answer.json()["reason"]) == (413, "too_large")


def test_failed_batch_states_how_much_was_written(http: httpx.Client) -> None:
    """The failure is the first record's, with the number of records that are in the topic."""
    records = [{"key": "a", "value": 1}, {"key": "b", "value": "refuse"}, {"key": "c", "value": 1}]
    answer = http.post("/v1/records", json=records)

    assert (answer.status_code, answer.json()["detail"]) == (
        503,
        "record 1: Kafka is away; 2 of 3 were written",
    )


def test_view_without_writes_answers_403(tmp_path: Path) -> None:
    """The refusal names the field that enables writes."""
    with served(tmp_path) as node, node.client() as http:
        for answer in (http.post("/v1/records", json={"key": "a", "value": 1}), http.delete("/v1/records/a")):
            assert (answer.status_code, answer.json()["reason"]) == (403, "forbidden")
            assert "spec.read.ingest" in answer.json()["advice"]
