"""Test topics in all states: missing, empty, recreated, compacted, transactional, with one partition and with fifty."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import TopicPartition

from tests.integration import topics
from tests.integration.system import System, resource, running
from tests.support.fold import fold
from tests.support.waiting import eventually


def failed(system: System) -> list[str]:
    return [p["failed"] for p in system.status()["partitions"] if p["failed"]]


@pytest.mark.parametrize("partitions", [1, 50])
def test_any_number_of_partitions(kafka: Any, tmp_path: Path, partitions: int) -> None:
    """One node reads topics of one partition and of fifty completely."""
    topic = f"wide-{partitions}"
    topics.create(kafka.bootstrap, topic, partitions)
    values = {f"key-{n}": n for n in range(1000)}
    topics.produce(kafka.bootstrap, topic, topics.json_records(values))
    with running(resource(topic, kafka.bootstrap), tmp_path) as system:
        assert {item["key"]: item["value"] for item in system.items()} == values
        assert system.value("key-7") == 7


def test_empty_topic_is_complete_at_once(kafka: Any, tmp_path: Path) -> None:
    """A node of an empty topic is ready, and answers key_not_found for every key."""
    topics.create(kafka.bootstrap, "empty", 2)
    with running(resource("empty", kafka.bootstrap), tmp_path) as system:
        assert system.value("anything") is None
        assert system.get("/v1/count").json()["count"] == 0


def test_growing_topic_is_noticed(kafka: Any, tmp_path: Path) -> None:
    """A node notices new partitions, still finds keys in the old ones, and a new run reads everything."""
    topics.create(kafka.bootstrap, "grows", 2)
    before, after = {f"old-{n}": n for n in range(20)}, {f"new-{n}": n for n in range(60)}
    topics.produce(kafka.bootstrap, "grows", topics.json_records(before))
    document = resource("grows", kafka.bootstrap)
    with running(document, tmp_path) as system:
        topics.grow(kafka.bootstrap, "grows", 3)
        eventually("status counts the new partitions", lambda: system.status()["topicPartitions"] == 3)
        assert system.status()["placedPartitions"] == 2
        topics.produce(kafka.bootstrap, "grows", topics.json_records(after))
        ends = topics.ends(kafka.bootstrap, "grows")
        system.at_end({partition: ends[partition] for partition in (0, 1)})
        read = {r.key.decode() for r in topics.records(kafka.bootstrap, "grows") if r.partition < 2 and r.key}
        assert len(read) < len(before | after)
        assert {key: system.value(key) for key in read} == {key: (before | after)[key] for key in read}
        unread = next(key for key in after if key not in read)
        answer = system.get(f"/v1/keys/{unread}").json()
        assert (answer["reason"], answer["missing"]) == ("not_available", [2])
        items = system.post("/v1/multi-get", json={"keys": [unread, "old-1"]}).json()["items"]
        assert [item["found"] for item in items] == [None, True]
        assert system.node_logs().count('"partitions-changed"') == 1
    with running(document, tmp_path) as system:
        assert {item["key"]: item["value"] for item in system.items()} == before | after


def test_run_waits_for_a_missing_topic(kafka: Any, tmp_path: Path) -> None:
    """The run names the topic that it waits for, and reads it once it exists."""
    with running(resource("comes-late", kafka.bootstrap), tmp_path, wait=False) as system:
        eventually("the log names the topic", lambda: "comes-late" in system.log.read_text())
        topics.create(kafka.bootstrap, "comes-late", 2)
        topics.produce(kafka.bootstrap, "comes-late", [(b"k", b"1")])
        eventually("run.json", lambda: (system.data / "run.json").exists(), 90)
        system.wait_ready()
        assert system.value("k") == 1


def test_run_without_its_topic_ends_at_the_deadline(kafka: Any, tmp_path: Path) -> None:
    """After the deadline one sentence names the topic, and the exit code is not zero."""
    document = resource("never", kafka.bootstrap)
    with running(document, tmp_path, "--topic-wait", "3s", wait=False) as system:
        assert system.process.wait(120) != 0
        assert "never" in system.log.read_text()


@pytest.mark.parametrize("policy", ["Fail", "Rebuild"])
def test_recreated_topic_follows_on_data_loss(kafka: Any, tmp_path: Path, policy: str) -> None:
    """Fail keeps the old rows readable and reports it; Rebuild starts over with the new topic's records."""
    topic = f"again-{policy.lower()}"
    topics.create(kafka.bootstrap, topic, 2)
    topics.produce(kafka.bootstrap, topic, [(f"old-{n}".encode(), b"1") for n in range(50)])
    with running(resource(topic, kafka.bootstrap, onDataLoss=policy), tmp_path) as system:
        assert system.value("old-7") == 1
        topics.delete(kafka.bootstrap, topic)
        topics.create(kafka.bootstrap, topic, 2)
        topics.produce(kafka.bootstrap, topic, [(f"new-{n}".encode(), b"2") for n in range(80)])

        if policy == "Rebuild":
            eventually("the new records are readable", lambda: quietly(system, "new-7") == 2, 90)
            system.at_end(topics.ends(kafka.bootstrap, topic))
            assert {i["key"] for i in system.items()} == {f"new-{n}" for n in range(80)}
        else:
            eventually("status shows the failure", lambda: len(failed(system)) == 2, 90)
            assert system.value("old-7") == 1


def test_feed_of_a_recreated_topic_begins_anew(kafka: Any, tmp_path: Path) -> None:
    """An id of the old topic is refused with 410, a feed from its latest change has the new records, and one that begins anew
    has them all."""
    topics.create(kafka.bootstrap, "anew", 2)
    topics.produce(kafka.bootstrap, "anew", [(f"old-{n}".encode(), b"1") for n in range(100)])
    document = resource("anew", kafka.bootstrap, onDataLoss="Rebuild", view={"changes": True})
    with running(document, tmp_path) as system:
        system.at_end(topics.ends(kafka.bootstrap, "anew"))
        ndjson = {"accept": "application/x-ndjson"}
        page = system.get("/v1/changes?from=latest&wait-ms=0", headers=ndjson)
        old = json.loads(page.text.splitlines()[-1])["next"]
        with system.http.stream("GET", system.url() + "/v1/changes", timeout=60) as open_feed:
            lines = open_feed.iter_lines()
            next(lines)
            topics.delete(kafka.bootstrap, "anew")
            topics.create(kafka.bootstrap, "anew", 2)
            topics.produce(kafka.bootstrap, "anew", [(f"new-{n}".encode(), b"2") for n in range(10)])
            eventually("the new records are readable", lambda: quietly(system, "new-7") == 2, 120)
            system.at_end(topics.ends(kafka.bootstrap, "anew"))
            for _ in lines:  # until the node ends the stream
                pass
        refused = system.get(f"/v1/changes?from={old}&wait-ms=0", headers=ndjson)
        assert (refused.status_code, refused.json()["reason"]) == (410, "not_retained")
        anew = system.get("/v1/changes?from=start&wait-ms=0", headers=ndjson).text.splitlines()
        changed = [json.loads(line) for line in anew]
        assert {each["key"] for each in changed if "key" in each} == {f"new-{n}" for n in range(10)}


def quietly(system: System, key: str) -> Any:
    """Return the value, or None while it is not available."""
    try:
        answer = system.get(f"/v1/keys/{key}")
    except httpx.TransportError:
        return None
    return answer.json() if answer.status_code == 200 else None


@pytest.mark.parametrize("policy", ["Fail", "Rebuild"])
def test_deleted_offsets_follow_on_data_loss(kafka: Any, tmp_path: Path, policy: str) -> None:
    """Records that retention deleted before they were read follow onDataLoss."""
    topic = f"retention-{policy.lower()}"
    topics.create(kafka.bootstrap, topic, 1)
    document = resource(topic, kafka.bootstrap, onDataLoss=policy)
    topics.produce(kafka.bootstrap, topic, [(f"old-{n}".encode(), b"1") for n in range(10)])
    with running(document, tmp_path) as system:
        assert system.value("old-7") == 1
    topics.produce(kafka.bootstrap, topic, [(f"new-{n}".encode(), b"2") for n in range(100)])
    client = topics.admin(kafka.bootstrap)
    for deleted in client.delete_records([TopicPartition(topic, 0, 60)]).values():
        deleted.result(20)

    with running(document, tmp_path, wait=False) as system:
        eventually("run.json", lambda: (system.data / "run.json").exists(), 90)
        if policy == "Rebuild":
            eventually("the remaining records are readable", lambda: quietly(system, "new-99") == 2, 90)
            system.wait_ready()
            assert {i["key"] for i in system.items()} == {f"new-{n}" for n in range(50, 100)}
        else:
            eventually("status shows the failure", lambda: failed(system), 90)
            assert system.value("old-7") == 1


def test_only_committed_records_of_transactions_are_read(kafka: Any, tmp_path: Path) -> None:
    """Aborted and open transactions are invisible, and markers at the end offset cause no lag. A view with history answers what
    was before them, until the topic is compacted."""
    topics.create(kafka.bootstrap, "tx", 2)
    client = topics.producer(kafka.bootstrap, **{"transactional.id": "tx-test"})
    client.init_transactions(20)

    def transaction(keys: range, commit: bool) -> None:
        client.begin_transaction()
        for n in keys:
            client.produce("tx", key=f"key-{n}".encode(), value=b"true" if commit else b"false")
        if commit:
            client.commit_transaction(20)
        else:
            client.flush(20)
            client.abort_transaction(20)

    transaction(range(50), commit=True)
    topics.wait_for_markers(kafka.bootstrap, "tx")
    assert sum(topics.ends(kafka.bootstrap, "tx").values()) == 50 + 2
    first = ",".join(f"{p}:{end}" for p, end in topics.ends(kafka.bootstrap, "tx").items())
    transaction(range(100), commit=False)
    with running(resource("tx", kafka.bootstrap, view={"kind": "history"}), tmp_path) as system:
        assert {i["key"]: i["value"] for i in system.items()} == {f"key-{n}": True for n in range(50)}
        system.at_end(topics.ends(kafka.bootstrap, "tx"))

        client.begin_transaction()
        client.produce("tx", key=b"open", value=b"1")
        client.flush(20)
        assert (
            system.get("/v1/keys/open?consistency=strong&deadline-ms=5000").json()["reason"]
            == "key_not_found"
        )
        client.commit_transaction(20)
        # The marker that makes the record visible follows the answer to the commit.
        eventually(
            "the committed record is readable",
            lambda: system.get("/v1/keys/open?consistency=strong").json() == 1,
        )
        system.at_end(topics.ends(kafka.bootstrap, "tx"))
        assert all(p["lagRecords"] == 0 for p in system.status()["partitions"])

        assert {i["key"] for i in system.items(f"/v1/scan?as-of={first}")} == {f"key-{n}" for n in range(50)}
        topics.configure(kafka.bootstrap, "tx", {"cleanup.policy": "compact"})
        eventually(
            "the past is refused",
            lambda: (
                (answer := system.get(f"/v1/scan?as-of={first}")).status_code == 410
                and answer.json()["reason"] == "not_retained"
            ),
            60,
        )


def test_compacted_topic_with_gaps_is_read(kafka: Any, tmp_path: Path) -> None:
    """Compaction leaves gaps in the offsets and has no other effect."""
    topics.create(
        kafka.bootstrap,
        "compacted",
        1,
        **{
            "cleanup.policy": "compact",
            "segment.ms": "100",
            "segment.bytes": "1048576",
            "min.cleanable.dirty.ratio": "0.01",
            "max.compaction.lag.ms": "200",
            "delete.retention.ms": "100",
        },
    )
    for round_ in range(6):
        records = [(f"key-{n % 50}".encode(), json.dumps([round_, n]).encode()) for n in range(500)]
        topics.produce(kafka.bootstrap, "compacted", [*records, (f"key-{round_}".encode(), None)])
        time.sleep(0.2)  # the broker rolls a segment by time

    def has_gaps() -> bool:
        topics.produce(kafka.bootstrap, "compacted", [(b"roll", b"1")])
        return len(topics.records(kafka.bootstrap, "compacted")) < 2000

    eventually("compaction has left gaps", has_gaps, 90)
    with running(resource("compacted", kafka.bootstrap), tmp_path) as system:
        log = topics.records(kafka.bootstrap, "compacted")
        expected = {k.decode(): json.loads(r.value) for k, r in fold(log).items() if r.value is not None}
        system.at_end(topics.ends(kafka.bootstrap, "compacted"))
        assert {i["key"]: i["value"] for i in system.items()} == expected
