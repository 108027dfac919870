"""Measure what it costs serve to fold records into aggregates: CPU per record, over few and many groups.

Slices of 1 000 records with random groups are applied to a store in which every group exists already: one at a time, and four
together, as a backlog arrives. `loop` is the CPU time of
the event loop's thread, which reads wait for; `all` adds RocksDB's threads. `latest` applies slices with a value of 40 bytes
to a view without aggregates.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from bench.harness import Result, median
from queryable_app.serve.node import Node
from queryable_app.wire.row_frames import SliceRow
from tests.support.aggregates import contribution_row
from tests.support.node import open_node, put, slice_payload

SLICE_ROWS = 1000
TOGETHER = 4
ROUNDS = 5
COLUMNS: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "count": ("-", [{"name": "n", "op": "count"}]),
    "count, sum, avg, max": (
        "-l",
        [
            {"name": "n", "op": "count"},
            *({"name": op, "op": op, "of": "amount"} for op in ("sum", "avg", "max")),
        ],
    ),
    "distinct": ("l", [{"name": "d", "op": "approx_count_distinct", "of": "amount"}]),
}


def payload(case: str, first: int, keys: Sequence[int]) -> bytes:
    rows: list[SliceRow] = []
    for offset, key in enumerate(keys, first):
        name = b"key-%012d" % key
        if case == "latest":
            rows.append(put(offset, name, b'{"n":%034d}' % offset))
        else:
            types = COLUMNS[case][0]
            rows.append(
                contribution_row(offset, name, types, [2 if each == "-" else offset for each in types])
            )
    return slice_payload(*rows)


def run(directory: Path, case: str, groups: int, records: int, together: int) -> dict[str, float | int | str]:
    directory.mkdir(parents=True)
    spec: dict[str, Any] = {}
    if case != "latest":
        spec = {"view": {"kind": "aggregate", "aggregate": {"columns": COLUMNS[case][1]}}}
    node: Node = open_node(directory, **spec)
    dice = random.Random(groups)
    offset = 0
    everything = list(range(groups))
    dice.shuffle(everything)
    for start in range(0, groups, SLICE_ROWS):
        keys = everything[start : start + SLICE_ROWS]
        node.slices.apply(payload(case, offset, keys))
        offset += len(keys)
    loop, whole = [], []
    for _ in range(ROUNDS):
        payloads = []
        for _ in range(records // SLICE_ROWS // ROUNDS):
            payloads.append(payload(case, offset, dice.choices(range(groups), k=SLICE_ROWS)))
            offset += SLICE_ROWS
        thread, process = time.thread_time(), time.process_time()
        for start in range(0, len(payloads), together):
            node.slices.apply(*payloads[start : start + together])
        count = len(payloads) * SLICE_ROWS
        loop.append((time.thread_time() - thread) / count * 1e6)
        whole.append((time.process_time() - process) / count * 1e6)
    node.replicas.close()
    return {
        "loop µs/record": round(median(loop), 2),
        "all µs/record": round(median(whole), 2),
        "max": round(max(whole), 2),
    }


def measure(directory: Path, quick: bool) -> Iterator[Result]:
    records = 100_000 if quick else 500_000
    for groups in (10_000, 1_000_000):
        for case, together in product(("latest", *COLUMNS), (1, TOGETHER)):
            target = "<= 7" if case == "count" and groups == 1_000_000 else ""
            figures = run(directory / f"{case}-{groups}-{together}", case, groups, records, together)
            at_once = f"{together} slices at once" if together > 1 else "one slice"
            yield Result("fold", f"{case}, {groups:,} groups, {at_once}", figures, target)
