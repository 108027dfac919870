"""Test entries over a real Kafka and Spark: a key's range of times equals the fold of the topic, whatever is killed."""

from __future__ import annotations

import json
import random
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from queryable_app.config.avro_schema import parse_avro_schema
from queryable_app.wire.avro import avro_bytes
from queryable_app.wire.times import parse_time, to_iso
from tests.integration import topics
from tests.integration.system import System, example, resource, running
from tests.support.entries import HOUR_MS, Fold, Record, folded
from tests.support.waiting import eventually

PAGE = (Path(__file__).parents[2] / "docs" / "queries.md").read_text()
SEED = 20261123
PARTITIONS = 4
START_MS = 1_795_348_800_000  # 2026-11-22T12:00:00Z
SENSORS = [f"sensor-{n}" for n in range(12)]


def readings(seed: int) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield readings a second apart: some out of order, some late, some of a wrong clock, some without a time, and
    tombstones."""
    dice = random.Random(seed)
    for number in range(1 << 30):
        sensor, chance = dice.choice(SENSORS).encode(), dice.random()
        at_ms = START_MS + number * 1000
        if chance < 0.3:
            at_ms -= dice.randrange(8_000)
        elif chance < 0.32:
            at_ms -= 2 * HOUR_MS
        elif chance < 0.33:
            at_ms += 86_400_000 * 365
        value: dict[str, Any] = {"n": number, "at": to_iso(at_ms) if number % 2 else at_ms}
        if chance > 0.99:
            value.pop("at")
        yield sensor, None if 0.98 < chance < 0.981 else json.dumps(value).encode()


def folds(bootstrap: str, topic: str, retention_ms: int) -> tuple[list[Fold], int]:
    """Return what each partition must have, and the number of bad records."""
    logs: list[list[Record]] = [[] for _ in range(PARTITIONS)]
    bad = 0
    for record in topics.records(bootstrap, topic):
        log, key = logs[record.partition], record.key or b""
        assert record.offset == len(log)
        if record.value is None:
            log.append(Record(key, 0, None))
            continue
        at = json.loads(record.value).get("at")
        bad += at is None
        at_ms = parse_time(str(at)) if at is not None else 0
        assert at_ms is not None
        log.append(
            Record(key, at_ms, record.value, dropped=at is None)
        )  # a bad record changes nothing either
    return [folded(log, retention_ms) for log in logs], bad


def entries(system: System, sensor: str, node: int, query: str = "") -> list[tuple[int, int, Any]]:
    """Return the entries of a sensor from all pages, as one node answers them."""
    found: list[tuple[int, int, Any]] = []
    cursor = ""
    while True:
        answer = system.get(f"/v1/entries/{sensor}?limit=500&deadline-ms=20000{query}{cursor}", node)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        for item in page["items"]:
            at_ms = parse_time(item["time"])
            assert at_ms is not None
            found.append((at_ms, item["offset"], item["value"]))
        if page["cursor"] is None:
            return found
        cursor = f"&cursor={page['cursor']}"


def test_entries_equal_the_fold_after_random_kills(kafka: Any, tmp_path: Path) -> None:
    """Under load, with serve and ingest killed at random moments, the entries of every key, in any range of times, the late and
    the bad records equal the topic's fold, on both nodes."""
    topic, dice, stop = "readings", random.Random(SEED), threading.Event()
    topics.create(kafka.bootstrap, topic, PARTITIONS)
    producing = threading.Thread(target=topics.flood, args=(kafka.bootstrap, topic, stop, readings(SEED)))
    producing.start()
    view = {"entries": {"timeField": "at", "retention": "1h"}}
    document = resource(topic, kafka.bootstrap, view=view, replicas=2, standbyReplicas=1)
    try:
        with running(document, tmp_path, nodes=2) as system:
            for role, node in [("ingest", 0), ("serve", 1), ("serve", 0), ("ingest", 1), ("serve", 0)]:
                stop.wait(dice.uniform(0.2, 2.0))
                system.kill(role, node)
                system.wait_ready(2)
            stop.set()
            producing.join(70)
            system.at_end(topics.ends(kafka.bootstrap, topic))
            expected, bad = folds(kafka.bootstrap, topic, HOUR_MS)
            late = {partition: fold.late for partition, fold in enumerate(expected)}

            def late_records(node: int) -> dict[int, int]:
                status = system.get("/v1/status", node).json()["partitions"]
                return {each["partition"]: each["lateRecords"] for each in status}

            total = 0
            for node in (0, 1):
                eventually(f"node {node} has the late records", lambda n=node: late_records(n) == late)  # type: ignore[misc]
                assert sum(each["bad"] for each in system.status(node)["partitions"]) == bad
                for sensor in SENSORS:
                    # One partition has the sensor, or none: its last record may be a tombstone.
                    of_key = [each for fold in expected for each in fold.between(sensor.encode())]
                    total += len(of_key)
                    wanted = [(each.time_ms, each.offset, json.loads(each.value)) for each in of_key]
                    assert entries(system, sensor, node) == wanted
                    assert entries(system, sensor, node, "&order=desc") == wanted[::-1]
                    if wanted:
                        low, high = sorted(dice.choice(wanted)[0] for _ in range(2))
                        between = [each for each in wanted if low <= each[0] < high]
                        assert entries(system, sensor, node, f"&from={low}&to={high}") == between
            assert (total > 100, bad > 0, sum(late.values()) > 0) == (True, True, True)
    finally:
        stop.set()
        producing.join(70)


def test_example_of_sensor_readings(kafka: Any, tmp_path: Path) -> None:
    """The example answers the requests of the page about queries as the page shows them."""
    document = example("sensor-readings.yaml", kafka.bootstrap)
    topic = document["spec"]["topic"]
    [produced] = re.findall(r"```readings\n(.*?)```", PAGE, re.S)
    records = [line.split(" ", 1) for line in produced.splitlines()]
    topics.create(kafka.bootstrap, topic, 1)
    topics.produce(kafka.bootstrap, topic, [(key.encode(), value.encode()) for key, value in records])
    shown = re.findall(r"```entries\nGET (.*?)\n(.*?)```", PAGE, re.S)
    assert len(shown) >= 4
    with running(document, tmp_path) as system:
        system.at_end(topics.ends(kafka.bootstrap, topic))
        for path, answer in shown:
            items = system.get(path).json()["items"]
            expected = [line.split(" ", 1) for line in answer.splitlines()]
            assert [(item["time"], item["value"]) for item in items] == [
                (time, json.loads(value)) for time, value in expected
            ]
        eventually("the run prints what to try", lambda: "In a browser" in system.log.read_text())
        printed = system.log.read_text()
    assert "/v1/entries/" in printed
    assert "/v1/scan" not in printed


def test_range_by_a_field_of_avro_values_after_a_transform(kafka: Any, tmp_path: Path) -> None:
    """Records of users with ratings in Avro are read by user and the time of the rating, which a transform has computed."""
    fields = [
        {"name": "movie", "type": "string"},
        {"name": "rated", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "stars", "type": "int"},
    ]
    text = json.dumps({"type": "record", "name": "Rating", "fields": fields})
    schema = parse_avro_schema(text)
    ratings = [("ann", f"movie-{n}", START_MS + n * 60_000, n % 6) for n in range(30)]
    rows = [
        (
            user.encode(),
            avro_bytes(schema, json.dumps({"movie": movie, "rated": to_iso(at), "stars": stars}).encode()),
        )
        for user, movie, at, stars in ratings
    ]
    for name, more, field in (
        ("ratings-sql", {"transform": {"sql": "SELECT value.movie AS movie, value.rated AS at FROM records "
                                              "WHERE value.stars > 0"}}, "at"),
        ("ratings-avro", {}, "rated"),
    ):  # fmt: skip
        topics.create(kafka.bootstrap, name, 1)
        topics.produce(kafka.bootstrap, name, rows)
        document = resource(
            name,
            kafka.bootstrap,
            value={"format": "avro", "schemaFrom": {"inline": text}},
            view={"entries": {"timeField": field}},
            **more,
        )
        with running(document, tmp_path / name) as system:
            system.at_end(topics.ends(kafka.bootstrap, name))
            low, high = to_iso(START_MS + 5 * 60_000), to_iso(START_MS + 20 * 60_000)
            found = entries(system, "ann", 0, f"&from={low}&to={high}&order=desc")
        wanted = [(at, movie) for _, movie, at, stars in ratings if stars > 0 or not more]
        between = [each for each in wanted if START_MS + 5 * 60_000 <= each[0] < START_MS + 20 * 60_000]
        assert [(at, value["movie"]) for at, _, value in found] == between[::-1]
