"""Test a latest-value view under another key than the record key, through the rekey job and its internal topic."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.integration import topics
from tests.integration.followers import Follower
from tests.integration.system import System, example, running
from tests.integration.test_rekey import executor_pids
from tests.support.fold import LogRecord
from tests.support.kafka import KafkaForTests
from tests.support.rekeying_jobs import SourceRecord, latest_values
from tests.support.waiting import eventually

SEED = 20261123
USERS = 60
ADDRESSES = 40  # fewer than users, so that some share one
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "500",
    "min.cleanable.dirty.ratio": "0.01",
}


def user(dice: random.Random) -> tuple[bytes, bytes | None]:
    """Return the record of a user who has moved to another address, or is gone."""
    key = f"u{dice.randrange(USERS)}".encode()
    value: dict[str, Any] = {"email": f"User{dice.randrange(ADDRESSES)}@x", "name": str(dice.random())}
    if dice.random() < 0.05:
        value["deleted"] = True
    if dice.random() < 0.05:
        del value["email"]
    return key, None if dice.random() < 0.1 else json.dumps(value).encode()


def by_email(log: Iterable[LogRecord]) -> dict[str, Any]:
    """Return the rows of the example's view, in the simplest way."""
    records, values = [], {}
    for each in log:
        value = json.loads(each.value) if each.value is not None else {}
        email = None if value.get("deleted") else value.get("email")
        key = None if email is None else email.lower().encode()
        record = SourceRecord(each.partition, each.offset, each.timestamp_ms, each.key, key)
        records.append(record)
        id = None if each.key is None else each.key.decode()
        values[record.value] = {"id": id, "email": key and key.decode(), "name": value.get("name")}
    return {key.decode(): values[shown] for key, shown in latest_values(records).items()}


def rows(system: System, node: int) -> dict[str, Any]:
    path = "/v1/scan?consistency=strong&deadline-ms=30000"
    return {item["key"]: item["value"] for item in system.items(path, node)}


def test_example_follows_users_through_kills(kafka: KafkaForTests, tmp_path: Path) -> None:
    """Users are found by their addresses; with the job, serve and ingest killed while addresses change and Kafka compacts the
    topic, both nodes show the newest user of each address, and an address without a user is gone. So it is for a client that has
    followed the changes."""
    document = example("users-by-email.yaml", kafka.bootstrap)
    topic = document["spec"]["topic"] = "users-by-email"
    document["spec"] |= {"replicas": 2, "standbyReplicas": 1}
    document["spec"]["view"]["changes"] = True
    topics.create(kafka.bootstrap, topic, 3)
    ann = [(b"u1", b'{"email": "Ann@x", "name": "Ann"}'), (b"u1", b'{"email": "ann@y", "name": "Ann"}')]
    nameless = (None, b'{"email": "nameless@x"}')  # which a compacted topic refuses
    topics.produce(kafka.bootstrap, topic, [*ann, nameless])
    first = topics.records(kafka.bootstrap, topic)
    stop, dice, victims = threading.Event(), random.Random(SEED), random.Random(SEED)
    users = iter(lambda: user(dice), None)
    producing = threading.Thread(target=topics.flood, args=(kafka.bootstrap, topic, stop, users, 20))
    with running(document, tmp_path, nodes=2, wait=False) as system:
        eventually("the nodes run", (system.data / "run.json").exists, 180)
        system.wait_ready(2, seconds=180)
        assert rows(system, 0) == {
            "ann@y": {"id": "u1", "email": "ann@y", "name": "Ann"},
            "nameless@x": {"id": None, "email": "nameless@x", "name": None},
        }
        topics.configure(kafka.bootstrap, topic, COMPACTED)
        follower = Follower(system)
        follower.read(0)
        producing.start()
        try:
            for victim in ("job", "serve", "ingest", "job"):
                stop.wait(victims.uniform(0.5, 3.0))
                follower.read(victims.randrange(2))
                if victim == "job":
                    _kill_job(system)
                else:
                    system.kill(victim, node=victims.randrange(2))
            eventually("Kafka has compacted it", lambda: _compacted(kafka.bootstrap, topic))
        finally:
            stop.set()
            producing.join(100)
        system.wait_ready(2, seconds=180)
        log = {(each.partition, each.offset): each for each in first}
        log |= {(each.partition, each.offset): each for each in topics.records(kafka.bootstrap, topic)}
        expected = by_email(each for _, each in sorted(log.items()))
        for node in range(2):
            eventually(f"node {node} is fresh", lambda node=node: _is_fresh(system, node), 120)  # type: ignore[misc]
            assert rows(system, node) == expected
        follower.read_to_end(1)
        assert follower.rows == expected
        assert [system.status(node)["rekey"]["state"] for node in range(2)] == ["streaming"] * 2


def test_executors_take_turns_and_leave_nothing_behind(kafka: KafkaForTests, tmp_path: Path) -> None:
    """Executors hand source partitions on with each batch in one run, and one is killed, while users move: the rows are the
    newest users of each address."""
    document = example("users-by-email.yaml", kafka.bootstrap)
    topic = document["spec"]["topic"] = "users-of-executors"
    document["spec"]["ingest"] = {"executors": 2, "batch": "10s"}
    topics.create(kafka.bootstrap, topic, 3)
    stop, dice = threading.Event(), random.Random(SEED)
    topics.produce(
        kafka.bootstrap, topic, [user(dice) for _ in range(500)]
    )  # the view is ready once it has them
    users = iter(lambda: user(dice), None)
    producing = threading.Thread(target=topics.flood, args=(kafka.bootstrap, topic, stop, users, 20))
    with running(document, tmp_path, wait=False) as system:
        eventually("the view runs", (system.data / "run.json").exists, 180)
        system.wait_ready(seconds=240)
        # On a busy machine the first run may end before it has read anything: the watch for stalls starts it again.
        ended = system.node_logs().count("rekey-run-ended")
        producing.start()
        try:
            stop.wait(21)  # two more batches begin
            assert system.node_logs().count("rekey-run-ended") == ended
            before = executor_pids(system)
            assert len(before) == 2
            os.kill(min(before), signal.SIGKILL)
            eventually(
                "another executor runs", lambda: len(now := executor_pids(system)) == 2 and now != before, 120
            )
            stop.wait(6)
        finally:
            stop.set()
            producing.join(100)
        eventually("the node is fresh", lambda: _is_fresh(system, 0), 180, story=system.tail)
        assert rows(system, 0) == by_email(topics.records(kafka.bootstrap, topic))


def _compacted(bootstrap: str, topic: str) -> bool:
    """Tell whether Kafka has removed records of each partition, so far that a reader misses most of them."""
    read = Counter(each.partition for each in topics.records(bootstrap, topic))
    return all(read[partition] < end / 2 for partition, end in topics.ends(bootstrap, topic).items())


def _kill_job(system: System) -> None:
    old = int(system.described()["rekeyJob"])
    os.kill(old, signal.SIGKILL)
    eventually("the job is replaced", lambda: int(system.described()["rekeyJob"]) != old, 60)


def _is_fresh(system: System, node: int) -> bool:
    return system.get("/v1/scan?consistency=strong&deadline-ms=5000", node).status_code == 200
