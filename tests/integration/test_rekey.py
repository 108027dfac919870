"""Test views that group by other columns than the record key, through the rekey job and its internal topic."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import psutil
import pytest
from confluent_kafka import Consumer, TopicPartition

from queryable_app.platform.processes import Process
from queryable_app.wire.partitioners import partition_for
from tests.integration import topics
from tests.integration.system import System, example, resource, running
from tests.support.fold import LogRecord
from tests.support.kafka import KafkaForTests, embedded_kafka
from tests.support.processes import suspended
from tests.support.waiting import eventually

SEED = 20261122
VIEW: dict[str, Any] = {
    "value": {"format": "json", "schema": "page STRING, shop INT, ms BIGINT"},
    "transform": {
        "sql": "SELECT value.page AS page, value.shop AS shop, value.ms AS ms FROM records WHERE value.ms >= 0"
    },
}
COLUMNS = [
    {"name": "views", "op": "count"},
    {"name": "ms", "op": "sum", "of": "ms"},
    {"name": "slowest", "op": "max", "of": "ms"},
]


def view(topic: str, bootstrap: str, group_by: list[str], **spec: Any) -> dict[str, Any]:
    aggregate = {"groupBy": group_by, "columns": COLUMNS}
    return resource(topic, bootstrap, **VIEW, view={"kind": "aggregate", "aggregate": aggregate}, **spec)


def record(dice: random.Random) -> tuple[bytes, bytes | None]:
    value = {"page": f"/{dice.randrange(30)}", "shop": dice.randrange(-3, 4), "ms": dice.randrange(-50, 1000)}
    if dice.random() < 0.02:
        del value["page"]
    content = (
        None if dice.random() < 0.05 else b"no json" if dice.random() < 0.02 else json.dumps(value).encode()
    )
    return f"user-{dice.randrange(50)}".encode(), content


def folded(log: Iterable[LogRecord], group_by: list[str]) -> dict[str, dict[str, int]]:
    """Return the aggregates of the groups, in the simplest way."""
    groups: dict[str, list[int]] = defaultdict(list)
    for each in log:
        try:
            value = json.loads(each.value or b"")
        except ValueError:
            continue
        parts = [value.get(name) for name in group_by]
        if value["ms"] < 0 or parts == [None]:
            continue
        key = str(parts[0]) if len(parts) == 1 else json.dumps(parts, separators=(",", ":"))
        groups[key].append(value["ms"])
    return {key: {"views": len(ms), "ms": sum(ms), "slowest": max(ms)} for key, ms in groups.items()}


def served(system: System, **options: Any) -> dict[str, Any]:
    answer = system.get("/v1/scan?limit=1000&consistency=strong&deadline-ms=30000", **options)
    assert answer.status_code == 200, answer.text
    return {str(item["key"]): item["value"] for item in answer.json()["items"]}


def job_pid(system: System) -> int:
    return int(system.described()["rekeyJob"])


def executor_pids(system: System) -> set[int]:
    """Return the processes of Spark's executors, which the job's JVM has started."""
    job, found = job_pid(system), set()
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            if b"CoarseGrainedExecutorBackend" in (directory / "cmdline").read_bytes():
                pid = int(directory.name)
                if _parent(_parent(pid)) == job:
                    found.add(pid)
        except OSError:
            continue  # it has ended
    return found


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@contextmanager
def another_job(system: System, directory: Path) -> Iterator[Process]:
    """Run a second job of the same view beside the first one."""
    own = Path(f"/proc/{job_pid(system)}/environ").read_bytes().split(b"\0")
    environ = dict(part.decode().split("=", 1) for part in own if part)
    (directory / "second").mkdir()
    environ["QT_RUN_DIR"] = str(directory / "second")
    command = [sys.executable, "-m", "queryable_app.ingest.rekey"]
    process = Process(command, directory / "second.log", environ)
    try:
        yield process
    finally:
        process.kill()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[KafkaForTests]:
    with embedded_kafka(tmp_path / "broker") as started:
        yield started


@pytest.mark.parametrize("group_by", [["shop"], ["shop", "page"]], ids=["integer", "two"])
def test_groups_of_other_columns_are_the_fold_of_the_topic(
    kafka: KafkaForTests, tmp_path: Path, group_by: list[str]
) -> None:
    """Integers and several columns are keys; positions, lag and strong reads speak of the source topic."""
    topic = f"grouped-{'-'.join(group_by)}"
    dice = random.Random(SEED)
    topics.create(kafka.bootstrap, topic, 3)
    topics.produce(kafka.bootstrap, topic, [record(dice) for _ in range(3000)])
    with running(view(topic, kafka.bootstrap, group_by), tmp_path) as system:
        assert served(system) == folded(topics.records(kafka.bootstrap, topic), group_by)
        ends = topics.ends(kafka.bootstrap, topic)
        positions = ",".join(f"{partition}:{end}" for partition, end in sorted(ends.items()))
        key, value = next(iter(folded(topics.records(kafka.bootstrap, topic), group_by).items()))
        path = f"/v1/keys/{httpx.QueryParams({'k': key})}".replace("k=", "", 1)
        answer = system.get(f"{path}?min-position={positions}")
        assert (answer.json(), answer.headers["qt-position"]) == (value, positions)
        assert answer.headers["qt-lag-records"] == "0"
        later = system.get(f"{path}?min-position=1:{ends[1] + 1}&deadline-ms=2000")
        assert later.json()["reason"] == "not_fresh_enough"
        assert system.status()["rekey"]["state"] == "streaming"
        _write_in_transactions(kafka.bootstrap, topic)
        expected = folded(topics.records(kafka.bootstrap, topic), group_by)
        eventually("a strong read is answered", lambda: _strong(system) is not None)
        assert served(system) == expected


def test_example_counts_pages(kafka: KafkaForTests, tmp_path: Path) -> None:
    """The example counts the page views that `qtopic run` produces for it."""
    document = example("page-counts.yaml", kafka.bootstrap)
    views = [("ann", "/docs", False), ("bob", "/docs", True), ("bob", "/", False), ("ann", "/docs", False)]
    topics.create(kafka.bootstrap, document["spec"]["topic"], 2)
    records = [
        (user.encode(), json.dumps({"user": user, "page": page, "bot": bot}).encode())
        for user, page, bot in views
    ]
    topics.produce(kafka.bootstrap, document["spec"]["topic"], records)
    with running(document, tmp_path) as system:
        assert served(system) == {"/": {"views": 1, "byBots": 0}, "/docs": {"views": 3, "byBots": 1}}


def test_example_counts_words(kafka: KafkaForTests, tmp_path: Path) -> None:
    """The example splits lines into words, and counts each occurrence once, also after the job was killed."""
    document = example("word-count.yaml", kafka.bootstrap)
    dice = random.Random(SEED)
    words = ["To", "be,", "or", "not", "BE:", "that", "is", "the", "question"]
    lines = [" ".join(dice.choices(words, k=9)) for _ in range(400)]
    lines += ["", "...", "one"]
    topics.create(kafka.bootstrap, document["spec"]["topic"], 3)
    topics.produce(
        kafka.bootstrap, document["spec"]["topic"], [(None, line.encode()) for line in lines[:200]]
    )
    with running(document, tmp_path) as system:
        topics.produce(
            kafka.bootstrap, document["spec"]["topic"], [(None, line.encode()) for line in lines[200:]]
        )
        os.kill(job_pid(system), signal.SIGKILL)
        expected = Counter(word for line in lines for word in re.findall("[a-z]+", line.lower()))
        eventually("the view is fresh", lambda: _strong(system) is not None, 120)
        assert served(system) == {word: {"n": n} for word, n in expected.items()}
        top = system.get("/v1/top?by=by-n&k=3").json()["items"]
        assert sorted(item["value"]["n"] for item in top) == sorted(expected.values())[-3:]


def test_every_number_is_the_fold_after_random_kills(broker: KafkaForTests, tmp_path: Path) -> None:
    """With serve, ingest, the job and the broker killed under load, and two jobs at once, every number is exact."""
    topic, dice, random_records = "killed", random.Random(SEED), random.Random(SEED)
    topics.create(broker.bootstrap, topic, 4)
    stop = threading.Event()
    records = iter(lambda: record(random_records), None)
    producing = threading.Thread(target=topics.flood, args=(broker.bootstrap, topic, stop, records, 20))
    producing.start()
    try:
        with running(view(topic, broker.bootstrap, ["page"]), tmp_path / "run") as system:
            for victim in ("job", "serve", "broker", "job", "ingest", "job"):
                stop.wait(dice.uniform(0.2, 3.0))
                if victim == "broker":
                    broker.kill()
                    broker.start()
                elif victim == "job":
                    old = job_pid(system)
                    os.kill(old, signal.SIGKILL)
                    eventually("the job is replaced", lambda old=old: job_pid(system) != old, 60)  # type: ignore[misc]
                else:
                    system.kill(victim)
            with another_job(system, tmp_path):
                log = tmp_path / "second.log"
                eventually(
                    "the second job runs", lambda: '"rekey-run"' in log.read_text(), 120, story=log.read_text
                )
                stop.set()
                producing.join(100)
                system.wait_ready(seconds=180)
                expected = folded(topics.records(broker.bootstrap, topic), ["page"])
                eventually("the view is fresh", lambda: _strong(system) is not None, 180)
                assert served(system) == expected
    finally:
        stop.set()
        producing.join(100)


def test_every_number_is_the_fold_after_an_executor_was_killed(kafka: KafkaForTests, tmp_path: Path) -> None:
    """Executors hand source partitions on with each batch, and one is killed: every number is exact, and transaction markers
    do not hold the position."""
    topic, dice, stop = "executors", random.Random(SEED), threading.Event()
    topics.create(kafka.bootstrap, topic, 4)
    topics.produce(kafka.bootstrap, topic, [record(dice) for _ in range(500)])
    records = iter(lambda: record(dice), None)
    producing = threading.Thread(target=topics.flood, args=(kafka.bootstrap, topic, stop, records, 20))
    document = view(topic, kafka.bootstrap, ["page"], ingest={"executors": 2, "batch": "5s"})
    with running(document, tmp_path, wait=False) as system:
        eventually("the view runs", (system.data / "run.json").exists, 120)
        system.wait_ready(seconds=240)
        producing.start()
        try:
            before = executor_pids(system)
            assert len(before) == 2
            os.kill(min(before), signal.SIGKILL)
            eventually(
                "another executor runs",
                lambda: len(now := executor_pids(system)) == 2 and now != before,
                120,
            )
            # Not a strong read: on a busy machine the job may stay further behind the flood than a read may wait.
            written = _source_ends(kafka.bootstrap, topic)
            eventually(
                "the view has what was written when the other executor ran",
                lambda: all(_reached(each["sources"], written) for each in system.status()["partitions"]),
                180,
                story=system.tail,
            )
            stop.wait(6)  # the next batch begins
        finally:
            stop.set()
            producing.join(100)
        _write_in_transactions(kafka.bootstrap, topic)
        ends = _source_ends(kafka.bootstrap, topic)
        eventually(
            "every replica is at the end, behind the transaction markers",
            lambda: all(each["sources"] == ends for each in system.status()["partitions"]),
            120,
        )
        assert served(system) == folded(topics.records(kafka.bootstrap, topic), ["page"])


@pytest.mark.parametrize("on_data_loss", ["Fail", "Rebuild"])
def test_deleted_internal_topic_gives_no_wrong_number(
    kafka: KafkaForTests, tmp_path: Path, on_data_loss: str
) -> None:
    """Without its internal topic a view fails with the reason, or builds its rows again from the source topic. If only some of
    its records were deleted before a replica read them, that replica fails and names them."""
    topic, dice = f"deleted-{on_data_loss.lower()}", random.Random(SEED)
    internal = f"local.{topic}.r1.rekey"
    topics.create(kafka.bootstrap, topic, 2)
    topics.produce(kafka.bootstrap, topic, [record(dice) for _ in range(500)])
    with running(view(topic, kafka.bootstrap, ["page"], onDataLoss=on_data_loss), tmp_path) as system:
        before = served(system)
        if on_data_loss == "Fail":
            ingest = psutil.Process(system.pid("ingest"))
            family = [ingest, *ingest.children(recursive=True)]
            with suspended(family):  # until the records are gone
                topics.produce(kafka.bootstrap, topic, [record(dice) for _ in range(500)])
                eventually(
                    "the job writes",
                    lambda: topics.ends(kafka.bootstrap, internal)[0] > system.partition(0)["position"] + 50,
                )
                reached = system.partition(0)[
                    "position"
                ]  # what the job wrote before ingest was suspended is applied by now
                topics.truncate(kafka.bootstrap, internal, {0: reached + 50})
                for process in family:  # none may hand over what the broker has sent it meanwhile
                    process.kill()
            gone = f"records from {reached} to {reached + 50} are gone from the log"
            eventually(
                "a replica fails", lambda: gone in str(system.partition(0)["failed"]), 300, story=system.tail
            )
            assert system.partition(1)["failed"] is None
        client = topics.admin(kafka.bootstrap)
        client.delete_topics([internal])[internal].result(20)
        topics.produce(kafka.bootstrap, topic, [record(dice) for _ in range(500)])
        if on_data_loss == "Fail":
            eventually(
                "the other replica fails",
                lambda: "deleted and made again" in str(system.partition(1)["failed"]),
                120,
            )
            rows = {
                item["key"]: item["value"]
                for item in system.items("/v1/scan?consistency=any")
                if partition_for(item["key"].encode(), "murmur2", 2) == 0
            }
            assert rows.items() <= before.items()
            assert _strong(system) is None
        else:
            eventually("the view is fresh", lambda: _strong(system) is not None, 180)
            assert served(system) == folded(topics.records(kafka.bootstrap, topic), ["page"])


def _fall_behind(kafka: KafkaForTests, system: System, topic: str, dice: random.Random) -> None:
    """Check the reads of a view whose job is suspended: their headers have the lag in the source topic, those that ask for newer
    rows are refused, and the others show what is counted."""
    before = served(system)
    page = f"/v1/keys/{quote(next(iter(before)), safe='')}"
    job = psutil.Process(job_pid(system))
    with suspended([job, *job.children(recursive=True)]):
        topics.produce(kafka.bootstrap, topic, [record(dice) for _ in range(300)])
        eventually(
            "the lag is in the headers", lambda: system.get(page).headers.get("qt-lag-records") == "300", 60
        )
        ends = ",".join(f"{p}:{end}" for p, end in sorted(topics.ends(kafka.bootstrap, topic).items()))
        for asked in ("consistency=strong", f"min-position={ends}"):
            assert _reason(system, f"{page}?{asked}&deadline-ms=2000") == "not_fresh_enough"
        late = f"{page}?consistency=bounded&max-lag-ms=500&deadline-ms=500"
        eventually("it is too old", lambda: _reason(system, late) == "not_fresh_enough", 60)
        assert system.get(f"{page}?consistency=any").json() == next(iter(before.values()))
    eventually("the view is fresh", lambda: _strong(system) is not None, 120)


def _reason(system: System, path: str) -> str:
    """Return the reason of a refused read; empty: it is answered."""
    answer = system.get(path)
    return "" if answer.status_code == 200 else str(answer.json()["reason"])


def test_job_follows_what_happens_to_the_source_topic(kafka: KafkaForTests, tmp_path: Path) -> None:
    """Reads show the lag of a job that is suspended, and it counts each record once when it goes on. Lag tools see the view's
    positions, and partitions that the internal topic gets change no number. Status has the partitions that the source
    gets. A source that was made again, with more records than before, fails the job."""
    topic, dice = "source-positions", random.Random(SEED)
    topics.create(kafka.bootstrap, topic, 2)
    topics.produce(kafka.bootstrap, topic, [record(dice) for _ in range(100)])
    with running(view(topic, kafka.bootstrap, ["page"]), tmp_path) as system:
        assert served(system) == folded(topics.records(kafka.bootstrap, topic), ["page"])
        _fall_behind(kafka, system, topic, dice)
        assert served(system) == folded(topics.records(kafka.bootstrap, topic), ["page"])
        topics.grow(kafka.bootstrap, f"local.{topic}.r1.rekey", 4)
        topics.produce(kafka.bootstrap, topic, [record(dice) for _ in range(100)])
        assert served(system) == folded(topics.records(kafka.bootstrap, topic), ["page"])
        ends = topics.ends(kafka.bootstrap, topic)
        eventually("they are committed", lambda: _committed(kafka.bootstrap, topic, system) == ends, 60)
        topics.grow(kafka.bootstrap, topic, 3)
        eventually("status has them", lambda: system.status()["topicPartitions"] == 3, 60)
        topics.delete(kafka.bootstrap, topic)
        topics.create(kafka.bootstrap, topic, 2)
        topics.produce(kafka.bootstrap, topic, [record(dice) for _ in range(300)])
        eventually("the job fails", lambda: system.status()["rekey"]["state"] == "failed", 60)
        assert "was deleted and made again" in system.status()["rekey"]["detail"]


def _committed(bootstrap: str, topic: str, system: System) -> dict[int, int]:
    """Return the positions that the group of the view has in its source topic."""
    group = system.status()["applicationId"]
    tool = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        places = tool.committed([TopicPartition(topic, partition) for partition in range(2)], 20)
        return {place.partition: place.offset for place in places}
    finally:
        tool.close()


def _write_in_transactions(bootstrap: str, topic: str) -> None:
    """Commit one transaction, and abort another one. Their markers, and aborted records, never arrive as records."""
    dice = random.Random(SEED)
    client = topics.producer(bootstrap, **{"transactional.id": f"{topic}-tx"})
    client.init_transactions(20)
    for committed in (True, False):
        client.begin_transaction()
        for _ in range(30):
            key, value = record(dice)
            client.produce(topic, key=key, value=value)
        (client.commit_transaction if committed else client.abort_transaction)(20)
    topics.wait_for_markers(bootstrap, topic)


def _source_ends(bootstrap: str, topic: str) -> list[int]:
    return [end for _, end in sorted(topics.ends(bootstrap, topic).items())]


def _reached(sources: list[int | None], ends: list[int]) -> bool:
    return all(source is not None and source >= end for source, end in zip(sources, ends, strict=True))


def _strong(system: System) -> Any:
    answer = system.get("/v1/scan?limit=1000&consistency=strong&deadline-ms=10000")
    return answer.json() if answer.status_code == 200 else None
