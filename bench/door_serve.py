"""Run serve as `python -m queryable_app.serve` does, and write down when each slice is applied: for `freshness_doors`."""

from __future__ import annotations

import os
import sys
import time

from queryable_app.serve.__main__ import main
from queryable_app.serve.feed.slices import Slices
from queryable_app.wire.row_frames import decode_slice_header

DOORS_FILE = "BENCH_DOORS_FILE"


def note_slices(path: str) -> None:
    """Write a line for each slice: partition, first and last offset, the nanoseconds before and after it is applied."""
    out = open(path, "a", buffering=1)  # noqa: SIM115 - for as long as the process runs
    apply = Slices.apply

    def timed(self: Slices, *payloads: bytes) -> None:
        begun = time.monotonic_ns()
        apply(self, *payloads)
        ended = time.monotonic_ns()
        for header in map(decode_slice_header, payloads):
            out.write(f"{header.partition} {header.first_offset} {header.last_offset} {begun} {ended}\n")

    Slices.apply = timed  # type: ignore[method-assign]


if __name__ == "__main__":
    note_slices(os.environ[DOORS_FILE])
    sys.exit(main())
