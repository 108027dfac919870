"""Measure a view with history: what its versions cost beside a view of latest values, and reads of the past.

The values are those of `python -m bench entries`. `apply` is the CPU of a store for each row, in slices of 1 000, as latest
values and with versions in turns. Reads come from one client in the node's own process, so their rates include the client. A
million records are of 10 000 keys, and 100 000 more of one key. A view of latest values beside has the same records.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.entries import (
    KEYS,
    LARGE_ENTRIES,
    LARGE_KEY,
    SLICE_ROWS,
    START_MS,
    applied,
    in_turns,
    key,
    value,
)
from bench.harness import Result
from queryable_app.config.history import HistorySpec
from queryable_app.serve.store.shared_memory import SharedMemory
from queryable_app.serve.store.store import Store
from queryable_app.wire.disk_format import Identity, ReplicaState, Row, encode_row
from queryable_app.wire.row_frames import ROW, SliceRow
from tests.support.served import Served, served

VIEW: dict[str, Any] = {"kind": "history", "history": {"retention": "3650d"}}
FOREVER = HistorySpec(1 << 50)


def _target(of: str, part: str) -> Callable[[int], str]:
    return lambda n: f"/v1/{of.replace('KEY', key(n).decode())}{part}"


def _reads_of(rows: int) -> dict[str, Callable[[int], str]]:
    """Return the reads of the past: at random moments, of which `rows` records are of the many keys."""

    def moment(n: int) -> int:
        return KEYS + n * 7919 % (rows - KEYS)

    def large(n: int) -> int:
        return rows + 1 + n * 7919 % (LARGE_ENTRIES - 1)

    return {
        "a key as of a position": lambda n: f"/v1/keys/{key(n).decode()}?as-of=0:{moment(n)}",
        "a key as of a time": lambda n: f"/v1/keys/{key(n).decode()}?as-of={START_MS + moment(n)}",
        "of 100 000 versions, as of a position": lambda n: f"/v1/keys/large?as-of=0:{large(n)}",
        "of 100 000 versions, as of a time": lambda n: f"/v1/keys/large?as-of={START_MS + large(n)}",
        "10 versions of a key": _target("keys/KEY/history", "?limit=10"),
        "100 of 100 000 versions": lambda n: f"/v1/keys/large/history?limit=100&to=0:{large(n) + 100}",
        "scan: 100 as of positions": lambda n: f"/v1/scan?limit=100&as-of=0:{moment(n)}",
    }


NEWEST: dict[str, Callable[[int], str]] = {
    "point read": _target("keys/KEY", ""),
    "point read with an option": _target("keys/KEY", "?consistency=any"),
    "scan: 100": lambda n: f"/v1/scan?limit=100&order={('asc', 'desc')[n % 2]}",
}


def _apply(directory: Path, rows: int, history: bool) -> float:
    """Return the CPU of a store in µs a row."""
    about = (Identity("bench", "bench", 0), SharedMemory(64, 64))
    store = Store.open(directory, *about, history=FOREVER if history else None)
    slices = [
        [(key(n), encode_row(Row(n, START_MS + n, 0, value(n)))) for n in range(start, start + SLICE_ROWS)]
        for start in range(0, rows, SLICE_ROWS)
    ]
    began = time.process_time()
    for number, puts in enumerate(slices, 1):
        store.apply(puts, ReplicaState(position=number * SLICE_ROWS, rows=number * SLICE_ROWS))
    spent = (time.process_time() - began) / rows * 1e6
    store.close()
    return spent


def _fill(node: Served, rows: int) -> None:
    numbered = [(key(n), n) for n in range(rows)] + [(LARGE_KEY, rows + n) for n in range(LARGE_ENTRIES)]
    for start in range(0, len(numbered), SLICE_ROWS):
        part = numbered[start : start + SLICE_ROWS]
        made = [SliceRow(of, encode_row(Row(n, START_MS + n, 0, value(n))), ROW, n) for of, n in part]
        node.put_slice(*made)


def _reads(directory: Path, quick: bool) -> Iterator[Result]:
    with (
        served(directory / "history", partitions=1, view=VIEW) as past,
        served(directory / "latest", partitions=1) as latest,
    ):
        rows, rounds, seconds = (100_000, 3, 0.5) if quick else (1_000_000, 5, 1.0)
        connections = []
        for node in (past, latest):
            _fill(node, rows)
            connections.append(http.client.HTTPConnection("127.0.0.1", node.port, timeout=60))
        cases = [(name, target, connections[0]) for name, target in _reads_of(rows).items()]
        for name, target in NEWEST.items():
            cases += [(f"{name}, history", target, connections[0])]
            cases += [(f"{name}, latest beside", target, connections[1])]
        yield from in_turns("history", cases, rounds, seconds)


def measure(directory: Path, quick: bool) -> Iterator[Result]:
    yield from applied("history", "history", directory / "apply", quick, _apply)
    yield from _reads(directory / "reads", quick)
