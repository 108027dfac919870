"""Test the path of a record from a producer through Kafka, Spark and RocksDB to an HTTP answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration import topics
from tests.integration.system import System, resource, running
from tests.support.waiting import eventually

TOPIC = "records"


@pytest.fixture(scope="module")
def system(kafka: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    topics.create(kafka.bootstrap, TOPIC, 4, **{"max.message.bytes": "8000000"})
    records = topics.json_records({f"user-{n}": {"n": n} for n in range(500)})
    topics.produce(kafka.bootstrap, TOPIC, records)
    document = resource(TOPIC, kafka.bootstrap, read={"ingest": True})
    with running(document, tmp_path_factory.mktemp("records")) as started:
        yield started


def settle(kafka: Any, system: System) -> None:
    system.at_end(topics.ends(kafka.bootstrap, TOPIC))


def test_every_record_is_readable(system: System) -> None:
    """A node answers each key of the topic with its value, and key_not_found for a key that was never written."""
    found = {item["key"]: item["value"] for item in system.items()}

    assert {f"user-{n}": {"n": n} for n in range(500)}.items() <= found.items()
    assert system.value("user-499") == {"n": 499}
    assert system.value("missing") is None


def test_newer_record_replaces_an_older_one(kafka: Any, system: System) -> None:
    """A node answers a key with its newest record and that record's offset."""
    before = system.get("/v1/keys/user-1")
    topics.produce(kafka.bootstrap, TOPIC, [(b"user-1", b'{"n": "new"}')])

    after = eventually(
        "the new value is readable", lambda: (a := system.get("/v1/keys/user-1")).json() == {"n": "new"} and a
    )
    assert int(after.headers["qt-offset"]) > int(before.headers["qt-offset"])


def test_a_tombstone_deletes(kafka: Any, system: System) -> None:
    """A record without a value removes its key from point reads, multi-gets and scans alike."""
    topics.produce(kafka.bootstrap, TOPIC, [(b"gone", b'{"n": 1}'), (b"stays", b'{"n": 2}')])
    eventually("the key is readable", lambda: system.value("gone"))
    topics.produce(kafka.bootstrap, TOPIC, [(b"gone", None)])

    eventually("the key is deleted", lambda: system.value("gone") is None)
    answer = system.post("/v1/multi-get", json={"keys": ["gone", "stays"]}).json()
    assert [item["found"] for item in answer["items"]] == [False, True]
    assert "gone" not in {item["key"] for item in system.items("/v1/prefix/go")}


def test_record_without_a_key_is_counted_and_skipped(kafka: Any, system: System) -> None:
    """Status counts records with null keys, and the rows around them are unharmed."""
    topics.produce(kafka.bootstrap, TOPIC, [(None, b'{"n": 1}'), (b"after-null", b'{"n": 1}')])

    eventually("the row after it is readable", lambda: system.value("after-null"))
    settle(kafka, system)
    assert sum(p["nullKeys"] for p in system.status()["partitions"]) >= 1


@pytest.mark.parametrize("value", [b"not json", b"", b'{"a":1} trailing', b"\xff\xfe", b'{"open":'], ids=repr)
def test_bad_record_is_skipped_and_counted(kafka: Any, system: System, value: bytes) -> None:
    """A value that is not JSON leaves the older value in place; status counts it and shows the last one."""
    key = b"bad-" + value.hex().encode()
    topics.produce(kafka.bootstrap, TOPIC, [(key, b'{"good": true}'), (key, value)])
    settle(kafka, system)

    assert system.value(key.decode()) == {"good": True}
    shown = [p["lastBad"] for p in system.status()["partitions"] if p["lastBad"]]
    assert any(bad["key"] == key.decode() for bad in shown)


def test_value_of_five_megabytes_is_stored(kafka: Any, system: System) -> None:
    """A node stores and answers a value of five megabytes."""
    value = json.dumps({"text": "x" * 5_000_000}).encode()
    topics.produce(kafka.bootstrap, TOPIC, [(b"large", value), (b"small", b"1")])
    settle(kafka, system)

    assert system.get("/v1/keys/large", headers={"accept": "application/octet-stream"}).content == value
    assert system.value("small") == 1


@pytest.mark.parametrize(
    "key",
    [
        "",
        "ALL",
        "COUNT",
        "a/b",
        "..",
        "%2F",
        "?",
        "#",
        "a b",
        "🦊",
        "processors",
        "\0",
        "a%00b",
        "/",
        "//",
        ".",
    ],
    ids=repr,
)
def test_no_key_is_reserved(kafka: Any, system: System, key: str) -> None:
    """A node answers keys that look like paths, queries or names of other systems."""
    raw = key.encode()
    topics.produce(kafka.bootstrap, TOPIC, [(raw, json.dumps({"key": key}).encode())])
    escaped = "".join(f"%{byte:02X}" for byte in raw)
    settle(kafka, system)

    answer = system.get(f"/v1/keys/{escaped}")
    assert (answer.status_code, answer.json()) == (200, {"key": key})


def test_binary_key_is_readable(kafka: Any, system: System) -> None:
    """A node answers keys that are not UTF-8, percent-encoded and in base64url."""
    topics.produce(kafka.bootstrap, TOPIC, [(b"\xff\x00\xfe", b'"bytes"')])
    settle(kafka, system)

    assert system.value("%FF%00%FE") == "bytes"
    assert system.value("_wD-?key-encoding=base64url") == "bytes"


def test_read_with_the_position_of_a_write_returns_it(system: System) -> None:
    """A read with the position of a write waits for that write."""
    for n in range(20):
        wrote = system.post("/v1/records", json={"key": "mine", "value": {"n": n}})
        assert wrote.status_code == 200, wrote.text
        position = wrote.json()["position"]
        read = system.get(f"/v1/keys/mine?consistency=at-least&min-position={position}")
        assert read.json() == {"n": n}
    deleted = system.request("DELETE", "/v1/records/mine").json()["position"]
    answer = system.get(f"/v1/keys/mine?consistency=at-least&min-position={deleted}")
    assert answer.json()["reason"] == "key_not_found"


def test_strong_read_sees_every_acknowledged_record(kafka: Any, system: System) -> None:
    """A strong read sees every record below the end offset at the time of the request."""
    for n in range(20):
        topics.produce(kafka.bootstrap, TOPIC, [(b"strong", json.dumps(n).encode())])
        assert system.get("/v1/keys/strong?consistency=strong&deadline-ms=30000").json() == n


def test_consumer_group_shows_the_positions(kafka: Any, system: System) -> None:
    """Ingest commits positions to Kafka under the group that is the application id."""
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

    settle(kafka, system)
    ends = topics.ends(kafka.bootstrap, TOPIC)
    group = system.status()["applicationId"]
    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(TOPIC, p) for p in ends])

    client = topics.admin(kafka.bootstrap)

    def committed() -> bool:
        answer = client.list_consumer_group_offsets([wanted])[group].result(10)
        return {p.partition: p.offset for p in answer.topic_partitions} == ends

    eventually("committed positions", committed)
