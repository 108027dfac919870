"""Measure secondary indexes: what two of them cost while records arrive, and reads by an index of a million rows.

A value is 120 B of JSON with a text of 20 000 different values and a number of a million. `apply` is the CPU of a store for each
row, in slices of 1 000, without indexes and with two in turns. Reads come from one client in the node's own process, so their
rates include the client. `hydration` is `python -m bench hydration` without and with the two indexes, in turns.
"""

from __future__ import annotations

import http.client
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from bench.harness import Result, document, median
from bench.hydration import PARTITIONS, hydrate
from queryable_app.config.indexes import IndexSpec
from queryable_app.serve.store.shared_memory import SharedMemory
from queryable_app.serve.store.store import Store
from queryable_app.wire.disk_format import Identity, ReplicaState, Row, encode_row
from queryable_app.wire.index_entries import RowIndexes
from tests.integration import topics
from tests.support.kafka import embedded_kafka
from tests.support.served import Served, served

VIEW: dict[str, Any] = {
    "indexes": [
        {"name": "by-user", "field": "user", "type": "string"},
        {"name": "by-views", "field": "views", "type": "long"},
    ]
}
USERS = 20_000
SLICE_ROWS = 1_000

READS: dict[str, Callable[[int], str]] = {
    "eq: one value": lambda n: f"/v1/index/by-views?eq={n * 7919 % 1_000_000}",
    "eq: the 50 rows of a value": lambda n: f"/v1/index/by-user?eq=user-{n * 7919 % USERS:05}",
    "range: a page of 100": lambda n: f"/v1/index/by-views?from={n * 7919 % 900_000}",
    "top 10 of all rows": lambda n: "/v1/top?by=by-views&k=10",
    "count of a value": lambda n: f"/v1/index/by-user/count?eq=user-{n * 7919 % USERS:05}",
    "groups: a page of 100": lambda n: f"/v1/index/by-user/groups?from=user-{n * 7919 % 10_000:05}",
    "point read, beside": lambda n: f"/v1/keys/{n * 7919 % 1_000_000:016x}",
}


def value(n: int) -> bytes:
    """Return a value; those of different `n` are in no order."""
    spread = n * 2654435761
    return b'{"id":%d,"user":"user-%05d","views":%d,"country":"DE","text":"%060d"}' % (
        n,
        spread % USERS,
        spread % 1_000_003,
        n,
    )


def _apply(directory: Path, rows: int, indexed: bool) -> tuple[float, float]:
    """Return the CPU of a store in µs a row: of new rows, and of rows that replace others."""
    indexes = RowIndexes([IndexSpec(each["name"], each["field"], each["type"]) for each in VIEW["indexes"]])
    store = Store.open(
        directory, Identity("bench", "bench", 0), SharedMemory(64, 64), indexes if indexed else None
    )
    order = list(range(rows))
    random.Random(1).shuffle(order)
    spent = []
    for update in (0, 1):
        slices = [
            [
                (b"%016x" % n, encode_row(Row(n, 1, 0, value(n + update))))
                for n in order[start : start + SLICE_ROWS]
            ]
            for start in range(0, rows, SLICE_ROWS)
        ]
        began = time.process_time()
        for number, puts in enumerate(slices):
            store.apply(puts, ReplicaState(position=number))
        spent.append((time.process_time() - began) / rows * 1e6)
    store.close()
    return spent[0], spent[1]


def _applied(directory: Path, quick: bool) -> Iterator[Result]:
    found: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    for round in range(1 if quick else 5):
        for indexed in (False, True):
            found[indexed].append(
                _apply(directory / f"{round}-{indexed}", 20_000 if quick else 100_000, indexed)
            )
    for indexed, figures in found.items():
        new, updates = (median([each[part] for each in figures]) for part in (0, 1))
        case = "apply, two indexes" if indexed else "apply, no index"
        yield Result("index", case, {"CPU µs a new row": new, "CPU µs an update": updates})


def _fill(node: Served, rows: int) -> None:
    replica = node.node.replicas.by_partition[0]

    def write(start: int) -> None:
        numbers = range(start, min(rows, start + SLICE_ROWS))
        puts = [(b"%016x" % n, encode_row(Row(n, 1, 0, value(n)))) for n in numbers]
        replica.apply(puts, replica.state._replace(position=start + len(puts), complete=True))

    for start in range(0, rows, SLICE_ROWS):
        node.on_loop(partial(write, start))


def _reads(directory: Path, quick: bool) -> Iterator[Result]:
    with served(directory, partitions=1, view=VIEW) as node:
        _fill(node, 20_000 if quick else 1_000_000)
        connection = http.client.HTTPConnection("127.0.0.1", node.port, timeout=60)
        for case, target in READS.items():
            rates = []
            for _ in range(1 if quick else 5):
                began, requests = time.perf_counter(), 0
                for n in count():
                    connection.request("GET", target(n))
                    answer = connection.getresponse()
                    body = answer.read()
                    assert answer.status in (200, 404), body
                    requests += 1
                    if time.perf_counter() - began > (0.2 if quick else 1.5):
                        break
                rates.append(requests / (time.perf_counter() - began))
            yield Result("index", case, {"requests/s": median(rates), "ms": 1000 / median(rates)})


def _hydration(directory: Path, records: int, rounds: int) -> Iterator[Result]:
    rates: dict[bool, list[float]] = {False: [], True: []}
    with embedded_kafka(directory / "broker") as kafka:
        topics.create(kafka.bootstrap, "hydrate", PARTITIONS)
        produced = ((b"%016x" % (n * 2654435761 % 2**48), value(n)) for n in range(records))
        topics.produce(kafka.bootstrap, "hydrate", produced, **{"linger.ms": 50, "compression.type": "lz4"})
        for _ in range(rounds):
            for indexed in (False, True):
                spec = document("hydrate", kafka.bootstrap, **({"view": VIEW} if indexed else {}))
                with tempfile.TemporaryDirectory(dir=directory) as data:
                    rates[indexed].append(float(hydrate(Path(data), spec, records, reading=False)["rows/s"]))
    without, with_two = median(rates[False]), median(rates[True])
    yield Result("index", "hydration, no index", {"rows/s": without})
    figures: dict[str, float | int | str] = {"rows/s": with_two, "ratio": with_two / without}
    yield Result("index", "hydration, two indexes", figures, ">= 0.6 of the rate without")


def measure(directory: Path, quick: bool) -> Iterator[Result]:
    yield from _applied(directory / "apply", quick)
    (directory / "reads").mkdir()
    yield from _reads(directory / "reads", quick)
    yield from _hydration(directory, 200_000 if quick else 1_000_000, 1 if quick else 5)
