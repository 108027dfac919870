"""Test what a view makes of its records: SQL, formats, bad records, time to live."""

from __future__ import annotations

import json
import struct
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.integration import topics
from tests.integration.system import resource, running
from tests.support.waiting import eventually

SCHEMA = "user STRING, page STRING, bot BOOLEAN, n INT"
SQL = "SELECT key, value.user AS user, upper(value.page) AS page FROM records WHERE value.bot = false"


def view(user: str, page: str, bot: bool) -> bytes:
    return json.dumps({"user": user, "page": page, "bot": bot}).encode()


@pytest.mark.parametrize("mode", ["realtime", "microbatch"])
def test_sql_projects_and_filters_records(kafka: Any, tmp_path: Path, mode: str) -> None:
    """SQL projects columns, a filtered row and a tombstone delete the older row, and a bad record does not."""
    topic = f"views-{mode}"
    topics.create(kafka.bootstrap, topic, 3)
    topics.produce(
        kafka.bootstrap,
        topic,
        [
            (b"a", view("ann", "home", False)),
            (b"b", view("bob", "home", False)),
            (b"b", view("bob", "cart", True)),
            (b"c", view("cid", "home", True)),
            (b"d", view("dan", "home", False)),
            (b"d", None),
            (b"e", view("eve", "home", False)),
            (b"e", b"no json"),
            (b"f", b'{"user": null, "page": "x", "bot": false}'),
        ],
    )
    document = resource(
        topic,
        kafka.bootstrap,
        value={"format": "json", "schema": SCHEMA},
        transform={"sql": SQL},
        ingest={"mode": mode},
    )
    with running(document, tmp_path) as system:
        system.at_end(topics.ends(kafka.bootstrap, topic))
        assert {i["key"]: i["value"] for i in system.items()} == {
            "a": {"user": "ann", "page": "HOME"},
            "e": {"user": "eve", "page": "HOME"},
            "f": {"user": None, "page": "X"},
        }
        partitions = system.status()["partitions"]
        assert sum(p["bad"] for p in partitions) == 1
        assert system.status()["ingest"]["mode"] == mode

        topics.produce(kafka.bootstrap, topic, [(b"a", view("ann", "cart", True))])
        eventually("the filter drops it", lambda: system.value("a") is None)


def test_invalid_sql_is_refused_before_the_start(kafka: Any, tmp_path: Path) -> None:
    """The run ends with advice, and starts no node. Spark's own sentences are tested without a run."""
    document = resource(
        "whatever",
        kafka.bootstrap,
        value={"format": "json", "schema": SCHEMA},
        transform={"sql": "SELECT value.user AS key FROM records"},
    )
    with running(document, tmp_path, wait=False) as system:
        assert system.process.wait(120) != 0
        assert "keyBy" in system.log.read_text()
        assert not (system.data / "run.json").exists()


def test_numbers_as_keys_and_values(kafka: Any, tmp_path: Path) -> None:
    """Long keys sort by value, negatives first, and doubles are answered as numbers."""
    topics.create(kafka.bootstrap, "numbers", 3)
    numbers = [-5_000_000_000, -2, -1, 0, 1, 7, 5_000_000_000]
    records = [(struct.pack(">q", n), struct.pack(">d", n / 2)) for n in numbers]
    topics.produce(kafka.bootstrap, "numbers", [*records, (b"short", struct.pack(">d", 1.0))])
    document = resource("numbers", kafka.bootstrap, key={"format": "long"}, value={"format": "double"})
    with running(document, tmp_path) as system:
        system.at_end(topics.ends(kafka.bootstrap, "numbers"))
        assert system.value("-5000000000") == -2_500_000_000
        assert [i["key"] for i in system.items()] == numbers
        assert [i["key"] for i in system.items("/v1/range?from=-2&to=7")] == [-2, -1, 0, 1]
        assert [i["key"] for i in system.items("/v1/range?from=-2&to=7&order=desc")] == [1, 0, -1, -2]
        assert sum(p["bad"] for p in system.status()["partitions"]) == 1


def test_bad_records_go_to_the_dead_letter_topic(kafka: Any, tmp_path: Path) -> None:
    """DeadLetter keeps the record with its origin and the reason; the rows around it are readable."""
    topics.create(kafka.bootstrap, "letters", 1)
    topics.produce(kafka.bootstrap, "letters", [(b"a", b"1"), (b"bad", b"{nope"), (b"b", b"2")])
    with running(resource("letters", kafka.bootstrap, onBadRecord="DeadLetter"), tmp_path) as system:
        system.at_end(topics.ends(kafka.bootstrap, "letters"))
        assert (system.value("a"), system.value("b"), system.value("bad")) == (1, 2, None)
        dead = f"{system.status()['applicationId']}.dead-letter"
    letter, *more = topics.records(kafka.bootstrap, dead)
    assert (letter.key, letter.value, more) == (b"bad", b"{nope", [])

    reader = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "dead"})
    reader.assign([TopicPartition(dead, 0, 0)])  # without the delays of a group
    read: Any = eventually("the dead letter", lambda: reader.poll(1))
    headers = dict(read.headers())
    reader.close()
    assert (headers["topic"], headers["partition"], headers["offset"]) == (b"letters", b"0", b"1")
    assert headers["reason"]


def test_bad_record_stops_its_partition_with_fail(kafka: Any, tmp_path: Path) -> None:
    """Fail stops before the record and reports it; earlier rows stay readable and other partitions continue."""
    topics.create(kafka.bootstrap, "strict", 2)
    with running(resource("strict", kafka.bootstrap, onBadRecord="Fail"), tmp_path) as system:
        client = topics.producer(kafka.bootstrap)
        for partition, key, value in [
            (0, b"a", b"1"),
            (0, b"bad", b"{nope"),
            (0, b"b", b"2"),
            (1, b"c", b"3"),
        ]:
            client.produce("strict", key=key, value=value, partition=partition)
        assert client.flush(20) == 0

        eventually("the partition has failed", lambda: system.partition(0)["failed"])
        assert system.partition(0)["position"] == 1
        eventually("the other partition continues", lambda: system.partition(1)["position"] == 1)
        client.produce("strict", key=b"d", value=b"4", partition=1)
        client.flush(20)
        eventually("the other partition continues further", lambda: system.partition(1)["position"] == 2)


def test_expired_row_is_in_no_answer(kafka: Any, tmp_path: Path) -> None:
    """An expired row is in no answer, and the approximate count drops it too."""
    topics.create(kafka.bootstrap, "short", 1)
    with running(resource("short", kafka.bootstrap, view={"ttl": "8s"}), tmp_path) as system:
        topics.produce(kafka.bootstrap, "short", [(b"first", b"1")])
        system.at_end({0: 1})  # the stream flows
        began = time.monotonic()
        topics.produce(kafka.bootstrap, "short", [(f"k-{n}".encode(), b"1") for n in range(2000)])
        eventually("the row is readable", lambda: system.value("k-7") == 1)
        eventually("the row has expired", lambda: system.value("k-7") is None)
        assert time.monotonic() - began >= 8
        eventually("all rows have expired", lambda: list(system.items()) == [])
        assert system.get("/v1/count").json()["count"] == 0
        eventually(
            "the approximate count is 0",
            lambda: system.get("/v1/count?approximate=true").json()["count"] == 0,
        )
