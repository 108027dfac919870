"""Read the windows that start within some time, of many groups, without reading the others one by one.

Strategy: the windows of a group are in order of their starts. So at the first row that is not wanted, a seek passes over the rest
of them. Each seek yields a row without content, so a caller that reads a bounded number of rows at a time also bounds the seeks.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from typing import Final

from queryable_app.aggregates.window_keys import first_key, key_after, split_window_key, window_key

PASSED_OVER: Final = b""
"""Stands for the stored bytes of a row that is not wanted."""

StoredRows = Generator[tuple[bytes, bytes], None, None]
ReadRows = Callable[[bytes | None, bytes | None, bool], StoredRows]


def rows_of_starts(
    rows: ReadRows,
    start: bytes | None,
    stop: bytes | None,
    reverse: bool,
    first_ms: int,
    after_ms: int,
) -> StoredRows:
    """Yield the rows of `[start, stop)` whose windows start in `[first_ms, after_ms)`, and some without content between them."""
    while True:
        with closing(rows(start, stop, reverse)) as found:
            for key, stored in found:
                group, start_ms = split_window_key(key)
                if first_ms <= start_ms < after_ms:
                    yield key, stored
                    continue
                yield key, PASSED_OVER
                if reverse:
                    stop = first_key(group) if start_ms < first_ms else window_key(group, after_ms)
                else:
                    start = window_key(group, first_ms) if start_ms < first_ms else key_after(group)
                break
            else:
                return
