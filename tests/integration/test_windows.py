"""Test windows over a real Kafka and Spark: every one equals the fold of the topic, on every replica, whatever is killed."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from queryable_app.wire.times import parse_time, to_iso
from tests.integration import topics
from tests.integration.followers import Follower
from tests.integration.system import EXAMPLES, System, example, resource, running
from tests.support.waiting import eventually
from tests.support.windows import COLUMNS, Record, Rules, expected, expected_of_sources

SEED = 20261122
PARTITIONS = 4
START_MS = 1_795_348_800_000
PAGES = [f"page-{n}" for n in range(30)]
SCHEMA = "v INT, at TIMESTAMP"
SQL = "SELECT key, value.v AS v, value.at AS at FROM records"
KINDS = {
    "tumbling": (Rules(60_000, 60_000, 5_000, 3_600_000), {"size": "1m", "grace": "5s", "retention": "1h"}),
    "sessions": (
        Rules(0, 0, 5_000, 3_600_000, gap=20_000),
        {"sessionGap": "20s", "grace": "5s", "retention": "1h"},
    ),
}
Items = dict[tuple[bytes, int, int], tuple[bool, dict[str, Any]]]


def page_views(seed: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield views of pages a second apart: some out of order, some late, and some of a wrong clock."""
    dice = random.Random(seed)
    for number in range(1 << 30):
        at_ms = START_MS + number * 1000
        chance = dice.random()
        if chance < 0.3:
            at_ms -= dice.randrange(8_000)
        elif chance < 0.4:
            at_ms -= dice.randrange(600_000)
        elif chance < 0.41:
            at_ms += 86_400_000 * 365
        page = PAGES[min(int(dice.expovariate(0.3)), len(PAGES) - 1)]
        yield page.encode(), json.dumps({"v": dice.randrange(-50, 50), "at": to_iso(at_ms)}).encode()


def logs(bootstrap: str, topic: str) -> list[list[Record]]:
    """Return the records of each partition. Their key is the page, where the record has one, or else the record key."""
    read: list[list[Record]] = [[] for _ in range(PARTITIONS)]
    for record in topics.records(bootstrap, topic):
        value = json.loads(record.value or b"")
        at_ms = parse_time(value["at"])
        assert at_ms is not None
        log = read[record.partition]
        assert record.offset == len(log)
        page = value.get("page")
        log.append(Record((record.key or b"") if page is None else page.encode(), at_ms, value["v"]))
    return read


def windows(system: System, node: int) -> Items:
    """Return all windows, as one node answers them."""
    found: Items = {}
    cursor = ""
    while True:
        answer = system.get(f"/v1/windows?limit=5000&deadline-ms=20000{cursor}", node)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        for item in page["items"]:
            start, end = parse_time(item["window"]["start"]), parse_time(item["window"]["end"])
            assert start is not None
            assert end is not None
            found[item["key"].encode(), start, end] = item["window"]["final"], item["value"]
        if page["cursor"] is None:
            return found
        cursor = f"&cursor={page['cursor']}"


@pytest.mark.parametrize("kind", KINDS)
def test_windows_equal_the_fold_after_random_kills(kafka: Any, tmp_path: Path, kind: str) -> None:
    """Under load, with serve and ingest killed at random moments, every window and the late records equal the topic's fold,
    and so do the changes that a client has followed at both nodes."""
    rules, window = KINDS[kind]
    topic, dice, stop = f"page-views-{kind}", random.Random(SEED), threading.Event()
    topics.create(kafka.bootstrap, topic, PARTITIONS)
    producing = threading.Thread(target=topics.flood, args=(kafka.bootstrap, topic, stop, page_views(SEED)))
    producing.start()
    document = resource(
        topic,
        kafka.bootstrap,
        value={"format": "json", "schema": SCHEMA},
        transform={"sql": SQL},
        view={
            "kind": "aggregate",
            "aggregate": {"window": {**window, "timeColumn": "at"}, "columns": COLUMNS},
            "changes": True,
        },
        replicas=2,
        standbyReplicas=1,
    )
    try:
        with running(document, tmp_path, nodes=2) as system:
            follower = Follower(system)
            for role, node in [("ingest", 0), ("serve", 1), ("serve", 0), ("ingest", 1), ("serve", 0)]:
                stop.wait(dice.uniform(0.2, 2.0))
                system.kill(role, node)
                follower.read(1 - node)
                system.wait_ready(2)
                follower.read(node)
            stop.set()
            producing.join(70)
            system.at_end(topics.ends(kafka.bootstrap, topic))
            partitions = [expected(log, rules) for log in logs(kafka.bootstrap, topic)]
            every = {k: v for each in partitions for k, v in each.items(rules).items()}
            late = {partition: each.late for partition, each in enumerate(partitions)}

            def late_records(node: int) -> dict[int, int]:
                status = system.get("/v1/status", node).json()["partitions"]
                return {each["partition"]: each["lateRecords"] for each in status}

            for node in (0, 1):
                eventually(f"node {node} has the late records", lambda n=node: late_records(n) == late)  # type: ignore[misc]
                assert windows(system, node) == every
            follower.read_to_end(0)
            # Expired windows leave no change.
            assert {w: value for w, value in follower.windows.items() if w in every} == {
                w: value for w, (_, value) in every.items()
            }
            assert follower.windows.keys() <= {w for each in partitions for w in each.windows}
            assert sum(late.values()) > 0
            assert {is_final for is_final, _ in every.values()} == {True, False}
            assert len(every) > 100
    finally:
        stop.set()
        producing.join(70)


def views_of_users(seed: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield the page views with a user as the record key, and the page in the value."""
    dice = random.Random(seed)
    for page, value in page_views(seed):
        yield (
            f"user-{dice.randrange(40)}".encode(),
            json.dumps({"page": page.decode(), **json.loads(value)}).encode(),
        )


def grouped(topic: str, bootstrap: str, window: dict[str, str], **spec: Any) -> dict[str, Any]:
    """Return a view of windows by page, where the record key is the user."""
    aggregate = {"groupBy": ["page"], "window": {**window, "timeColumn": "at"}, "columns": COLUMNS}
    return resource(
        topic,
        bootstrap,
        value={"format": "json", "schema": f"page STRING, {SCHEMA}"},
        transform={"sql": "SELECT value.page AS page, value.v AS v, value.at AS at FROM records"},
        view={"kind": "aggregate", "aggregate": aggregate},
        **spec,
    )


def kill_job(system: System) -> None:
    """Send SIGKILL to the rekey job, then wait until the supervisor has replaced it."""
    old = system.described()["rekeyJob"]
    os.kill(old, signal.SIGKILL)
    eventually("the job is replaced", lambda: system.described()["rekeyJob"] != old, 60)


def without_ends(items: Items) -> Items:
    """Leave out the first and last values: the internal topic decides the order of records of different source partitions."""
    columns = ("n", "total")
    return {
        window: (final, {name: value[name] for name in columns}) for window, (final, value) in items.items()
    }


def test_grouped_windows_equal_the_fold_after_random_kills(kafka: Any, tmp_path: Path) -> None:
    """Under load, with the rekey job, serve and ingest killed, windows by another column than the record key, and the late
    records, equal the fold of the source topic by the clocks of its partitions, on both nodes."""
    rules, window = KINDS["tumbling"]
    topic, dice, stop = "grouped-page-views", random.Random(SEED), threading.Event()
    topics.create(kafka.bootstrap, topic, PARTITIONS)
    records = views_of_users(SEED)
    producing = threading.Thread(target=topics.flood, args=(kafka.bootstrap, topic, stop, records))
    producing.start()
    document = grouped(topic, kafka.bootstrap, window, replicas=2, standbyReplicas=1)
    try:
        with running(document, tmp_path, nodes=2) as system:
            for role, node in [("job", 0), ("serve", 1), ("job", 0), ("ingest", 0), ("serve", 0)]:
                stop.wait(dice.uniform(0.2, 2.0))
                if role == "job":
                    kill_job(system)
                else:
                    system.kill(role, node)
            stop.set()
            producing.join(100)
            ends = [end for _, end in sorted(topics.ends(kafka.bootstrap, topic).items())]
            replicas = [(partition, node) for partition in range(PARTITIONS) for node in (0, 1)]

            def at_end() -> bool:
                return all(system.partition(p, node)["sources"] == ends for p, node in replicas)

            system.wait_ready(2, 180)
            eventually(f"source offsets {ends}\n{system.tail()}", at_end, 180)
            by_source = enumerate(logs(kafka.bootstrap, topic))
            fold = expected_of_sources([(n, each) for n, log in by_source for each in log], rules, PARTITIONS)
            for node in (0, 1):
                late = sum(each["lateRecords"] for each in system.status(node)["partitions"])
                assert (late, without_ends(windows(system, node))) == (
                    fold.late,
                    without_ends(fold.items(rules)),
                )
            assert windows(system, 0) == windows(system, 1)
            assert fold.late > 0
            assert {is_final for is_final, _ in fold.items(rules).values()} == {True, False}
    finally:
        stop.set()
        producing.join(100)


def test_example_of_page_views(kafka: Any, tmp_path: Path) -> None:
    """The example counts views and bots per minute, and its windows become final as time passes."""
    document = example("page-views.yaml", kafka.bootstrap)
    topic = document["spec"]["topic"]
    topics.create(kafka.bootstrap, topic, 1)
    views = [
        ("/cart", {"user": f"u{n}", "bot": n % 4 == 0, "at": to_iso(START_MS + n * 6_000)}) for n in range(40)
    ]
    topics.produce(
        kafka.bootstrap, topic, [(page.encode(), json.dumps(view).encode()) for page, view in views]
    )
    with running(document, tmp_path) as system:
        system.at_end(topics.ends(kafka.bootstrap, topic))
        answer = system.get("/v1/windows/%2Fcart?from=2026-11-22T12:01:00Z&to=2026-11-22T12:04:00Z").json()
        eventually("the run prints what to try", lambda: "In a browser" in system.log.read_text())
        printed = system.log.read_text()

    assert [
        (each["window"]["start"], each["window"]["final"], each["value"]) for each in answer["items"]
    ] == [
        ("2026-11-22T12:01:00.000Z", True, {"views": 8, "bots": 2, "last_user": "u19"}),
        ("2026-11-22T12:02:00.000Z", True, {"views": 7, "bots": 3, "last_user": "u29"}),
        ("2026-11-22T12:03:00.000Z", False, {"views": 8, "bots": 2, "last_user": "u39"}),
    ]
    assert "/v1/windows/%2Fcart" in printed
    assert "/v1/scan" not in printed


def test_example_of_top_pages(kafka: Any, tmp_path: Path) -> None:
    """The example ranks the pages of each minute, where users are the record keys."""
    document = example("top-pages.yaml", kafka.bootstrap)
    topic = document["spec"]["topic"]
    topics.create(kafka.bootstrap, topic, 2)
    views = [
        (f"user-{n}", {"page": "/" if n % 3 else "/cart", "at": to_iso(START_MS + n * 1_000)})
        for n in range(200)
    ]
    topics.produce(
        kafka.bootstrap, topic, [(user.encode(), json.dumps(view).encode()) for user, view in views]
    )
    with running(document, tmp_path) as system:
        answer = system.get(
            "/v1/top?by=views&k=3&to=2026-11-22T12:03:00Z&consistency=strong&deadline-ms=30000"
        ).json()
        other = system.get("/v1/windows/%2Fcart/2026-11-22T12:01:30Z")
    assert [(each["key"], each["window"]["start"], each["value"]) for each in answer["items"]] == [
        ("/", f"2026-11-22T12:0{minute}:00.000Z", {"views": 40}) for minute in range(3)
    ]
    assert [each["window"]["final"] for each in answer["items"]] == [True] * 3
    assert "starts at 2026-11-22T12:01:00.000Z" in other.json()["advice"]


def test_example_of_sessions(tmp_path: Path) -> None:
    """The example makes visits of the example records, and prints requests that work."""
    document = yaml.safe_load((EXAMPLES / "user-sessions.yaml").read_text())
    with running(document, tmp_path, "--kafka", "embedded", "--produce-examples", "50") as system:
        eventually("there are visits", lambda: len(system.get("/v1/windows").json()["items"]) > 5)
        for item in system.get("/v1/windows").json()["items"]:
            start, end = parse_time(item["window"]["start"]), parse_time(item["window"]["end"])
            assert start is not None
            assert end is not None
            assert end - start >= 30 * 60_000
            assert item["value"]["pages"] >= 1
            assert item["value"]["landed_on"].startswith("/")
