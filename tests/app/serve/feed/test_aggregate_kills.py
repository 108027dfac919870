"""Kill a real serve process while records flood in: every aggregate stays exact, to the last unit."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

from queryable_app.config.aggregate_spec import AggregateColumn
from tests.support.aggregates import Record, contribution_row, results, spec_of
from tests.support.node import slice_frame
from tests.support.serve_process import FakeIngest, ServeProcess, key_of, serve_process
from tests.support.waiting import eventually

PARTITIONS = 2
RECORDS = 30_000
KEYS = 200
KILLS = (0.1, 0.35, 0.6, 0.85)
COLUMNS: list[dict[str, Any]] = [
    {"name": "n", "op": "count"},
    {"name": "total", "op": "sum", "of": "amount"},
    {"name": "mean", "op": "avg", "of": "amount"},
    {"name": "seen", "op": "approx_count_distinct", "of": "amount"},
]
TYPES = "-l"
VIEW = {"kind": "aggregate", "aggregate": {"columns": COLUMNS}}
KEYS_OF = {p: [key_of(p, n, PARTITIONS).encode() for n in range(KEYS)] for p in range(PARTITIONS)}


def record(partition: int, offset: int) -> Record:
    """Return the record of the log at an offset: nine in ten are of few keys, and some add nothing."""
    dice = random.Random(partition << 32 | offset)
    key = KEYS_OF[partition][dice.randrange(3 if dice.random() < 0.9 else KEYS)]
    return key, None if dice.random() < 0.05 else (2, dice.randrange(-(10**12), 10**12))


def frame(partition: int, offset: int, end: int) -> tuple[bytes, int]:
    """Return a slice of some records, of another length at each start."""
    stop = min(end, offset + random.randint(1, 800))
    rows = [
        contribution_row(each, key, TYPES, inputs)
        for each in range(offset, stop)
        for key, inputs in (record(partition, each),)
    ]
    return slice_frame(*rows, partition=partition), stop


def folded(served: ServeProcess) -> int:
    return sum(max(0, partition["position"]) for partition in served.partitions())


def has_folded(served: ServeProcess, wanted: int) -> bool:
    return folded(served) >= wanted


def test_aggregates_are_exact_after_kills(tmp_path: Path) -> None:
    """After four kills in the middle of a flood, counts, sums and averages are those of each record folded once."""
    positions = []
    for share in (*KILLS, 1.0):
        with (
            serve_process(tmp_path, PARTITIONS, spec={"view": VIEW}) as served,
            FakeIngest(served, PARTITIONS, frame_of=frame) as ingest,
        ):
            positions.append(folded(served))
            ingest.ends = dict.fromkeys(range(PARTITIONS), RECORDS)
            wanted = int(share * PARTITIONS * RECORDS)
            eventually(f"{wanted} records are folded", partial(has_folded, served, wanted), 120)
            if share == 1.0:
                rows = served.client.get("/v1/scan?consistency=any&limit=1000").json()["items"]
                counters = [(p["rows"], p["dropped"]) for p in served.partitions()]

    log = [record(partition, offset) for partition in range(PARTITIONS) for offset in range(RECORDS)]
    spec = spec_of(*(AggregateColumn(c["name"], c["op"], c.get("of")) for c in COLUMNS[:3]))
    expected = {key.decode(): row for key, row in results(spec, TYPES, log).items()}
    distinct = {row["key"]: row["value"].pop("seen") for row in rows}
    assert {row["key"]: row["value"] for row in rows} == expected
    assert all(abs(distinct[key] - row["n"]) <= 0.06 * row["n"] + 1 for key, row in expected.items())
    assert sum(rows_folded + dropped for rows_folded, dropped in counters) == len(log)
    assert positions == sorted(positions)
    assert positions[-1] > 0
