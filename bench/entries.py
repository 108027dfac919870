"""Measure entries of keys by their time: what they cost beside a view of latest values, and reads of a range of times.

A value is 110 B of JSON with a time. `apply` is the CPU of a store for each row, in slices of 1 000, as latest values and as
entries in turns. Reads come from one client in the node's own process, so their rates include the client. They are of a
million entries of 10 000 keys, of a key with 100 000 more, and of a view of latest values beside. `hydration` is `python -m bench
hydration` of latest values and of entries, in turns.
"""

from __future__ import annotations

import http.client
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from bench.harness import Result, document, median
from bench.hydration import PARTITIONS, hydrate
from queryable_app.aggregates.entry_keys import shifted
from queryable_app.aggregates.entry_retention import EntryRetention
from queryable_app.config.entries import EntriesSpec
from queryable_app.serve.feed.entry_rows import EntryRows
from queryable_app.serve.feed.slices import LatestRows, View
from queryable_app.serve.store.shared_memory import SharedMemory
from queryable_app.serve.store.store import Store
from queryable_app.wire.disk_format import Identity, ReplicaState, Row, encode_row
from queryable_app.wire.row_frames import ROW, SliceRow
from tests.integration import topics
from tests.support.kafka import embedded_kafka
from tests.support.served import Served, served

START_MS = 1_795_348_800_000
VIEW: dict[str, Any] = {"entries": {"timeField": "at", "retention": "3650d"}}
KEYS = 10_000
LARGE_KEY = b"large"
LARGE_ENTRIES = 100_000
SLICE_ROWS = 1_000


def key(n: int) -> bytes:
    return b"%08x" % (n * 7919 % KEYS)


def value(n: int) -> bytes:
    return b'{"at":%d,"celsius":%d.5,"room":"room-%03d","text":"%050d"}' % (START_MS + n, n % 40, n % 100, n)


READS: dict[str, Callable[[int], str]] = {
    "a page of 10 of a key": lambda n: f"/v1/entries/{key(n).decode()}?limit=10",
    "the newest entry of a key": lambda n: f"/v1/entries/{key(n).decode()}?order=desc&limit=1",
    "100 within 100 000 of a key": lambda n: f"/v1/entries/large?from={START_MS + n * 7919 % 99_000}",
    "1 000 within 100 000": lambda n: f"/v1/entries/large?limit=1000&from={START_MS + n * 7919 % 99_000}",
    "where: 10 of about 400": lambda n: (
        f"/v1/entries/large?where=celsius=7.5&limit=10&from={START_MS + n * 7919 % 99_000}"
    ),
}
LATEST: dict[str, Callable[[int], str]] = {
    "point read of latest, beside": lambda n: f"/v1/keys/{key(n).decode()}",
    "scan: 100 of latest, beside": lambda n: f"/v1/scan?limit=100&order={('asc', 'desc')[n % 2]}",
}


def _apply(directory: Path, rows: int, entries: bool) -> float:
    """Return the CPU of a store in µs a row."""
    view: View = EntryRows(EntryRetention(EntriesSpec("at", 1 << 50))) if entries else LatestRows()
    store = Store.open(directory, Identity("bench", "bench", 0), SharedMemory(64, 64))
    order = list(range(rows))
    random.Random(1).shuffle(order)
    slices = [
        [
            (key(n), encode_row(Row(start + place, 1, shifted(START_MS + n) if entries else 0, value(n))))
            for place, n in enumerate(order[start : start + SLICE_ROWS])
        ]
        for start in range(0, rows, SLICE_ROWS)
    ]
    began = time.process_time()
    for number, slice_rows in enumerate(slices):
        changes = view.changes(store, slice_rows)
        store.apply(changes.puts, ReplicaState(position=number), None, changes.deletes, changes.clock)
    spent = (time.process_time() - began) / rows * 1e6
    store.close()
    return spent


def applied(
    bench: str, kind: str, directory: Path, quick: bool, apply: Callable[[Path, int, bool], float]
) -> Iterator[Result]:
    """Measure the CPU of a store for each row, of latest values and of the other `kind` in turns."""
    found: dict[bool, list[float]] = {False: [], True: []}
    for round in range(1 if quick else 5):
        for other in (False, True):
            rows = 20_000 if quick else 200_000
            found[other].append(apply(directory / f"{round}-{other}", rows, other))
    latest, of_kind = median(found[False]), median(found[True])
    yield Result(bench, "apply, latest values", {"CPU µs a row": latest})
    yield Result(bench, f"apply, {kind}", {"CPU µs a row": of_kind, "ratio": of_kind / latest})


def _fill(node: Served, rows: int, entries: bool) -> None:
    """Send rows as ingest does: those of many keys, and then those of one."""
    numbered = [(key(n), n) for n in range(rows)] + [(LARGE_KEY, n) for n in range(LARGE_ENTRIES)]
    for start in range(0, len(numbered), SLICE_ROWS):
        made = [
            SliceRow(
                of, encode_row(Row(offset, 1, shifted(START_MS + n) if entries else 0, value(n))), ROW, offset
            )
            for offset, (of, n) in enumerate(numbered[start : start + SLICE_ROWS], start)
        ]
        node.put_slice(*made)


def rate(connection: http.client.HTTPConnection, target: Callable[[int], str], seconds: float) -> float:
    began, requests = time.perf_counter(), 0
    for n in count():
        connection.request("GET", target(n))
        answer = connection.getresponse()
        body = answer.read()
        assert answer.status == 200, body
        requests += 1
        if time.perf_counter() - began > seconds:
            break
    return requests / (time.perf_counter() - began)


Case = tuple[str, Callable[[int], str], http.client.HTTPConnection]
"""A read: its name, its n-th target, and the connection to the node."""


def in_turns(bench: str, cases: Sequence[Case], rounds: int, seconds: float) -> Iterator[Result]:
    """Measure the rate of each read, in rounds."""
    rates: dict[str, list[float]] = {name: [] for name, _, _ in cases}
    for _ in range(rounds):
        for name, target, connection in cases:
            rates[name].append(rate(connection, target, seconds))
    for name, found in rates.items():
        yield Result(bench, name, {"requests/s": median(found), "ms": 1000 / median(found)})


def _reads(directory: Path, quick: bool) -> Iterator[Result]:
    with (
        served(directory / "entries", partitions=1, view=VIEW) as of_entries,
        served(directory / "latest", partitions=1) as latest,
    ):
        rows, rounds, seconds = (100_000, 3, 0.5) if quick else (1_000_000, 5, 1.0)
        connections = []
        for node, entries in ((of_entries, True), (latest, False)):
            _fill(node, rows, entries)
            connections.append(http.client.HTTPConnection("127.0.0.1", node.port, timeout=60))
        cases = [(name, target, connections[0]) for name, target in READS.items()]
        cases += [(name, target, connections[1]) for name, target in LATEST.items()]
        yield from in_turns("entries", cases, rounds, seconds)


def _hydration(directory: Path, records: int, rounds: int) -> Iterator[Result]:
    rates: dict[bool, list[float]] = {False: [], True: []}
    with embedded_kafka(directory / "broker") as kafka:
        topics.create(kafka.bootstrap, "hydrate", PARTITIONS)
        produced = ((key(n), value(n)) for n in range(records))
        topics.produce(kafka.bootstrap, "hydrate", produced, **{"linger.ms": 50, "compression.type": "lz4"})
        for _ in range(rounds):
            for entries in (False, True):
                spec = document("hydrate", kafka.bootstrap, **({"view": VIEW} if entries else {}))
                with tempfile.TemporaryDirectory(dir=directory) as data:
                    rates[entries].append(float(hydrate(Path(data), spec, records, reading=False)["rows/s"]))
    latest, of_entries = median(rates[False]), median(rates[True])
    yield Result("entries", "hydration, latest values", {"rows/s": latest})
    yield Result("entries", "hydration, entries", {"rows/s": of_entries, "ratio": of_entries / latest})


def measure(directory: Path, quick: bool) -> Iterator[Result]:
    yield from applied("entries", "entries", directory / "apply", quick, _apply)
    yield from _reads(directory / "reads", quick)
    yield from _hydration(directory, 200_000 if quick else 1_000_000, 1 if quick else 3)
