"""Iterate over a column family, and find unreadable blocks, which rocksdict's iterators pass over in silence."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Iterator
from itertools import islice
from typing import Any, Final

from rocksdict import Rdict, ReadOptions

_AHEAD_BYTES: Final = 1 << 20
_ROWS: Final = 64
_STEP_SECONDS: Final = 0.0005  # for this long RocksDB holds the interpreter


def walk(
    db: Rdict, start: bytes | None, stop: bytes | None, reverse: bool, caches: bool = True
) -> Generator[tuple[bytes, bytes], None, None]:
    """Iterate over the entries of `[start, stop)`. Raise at their end if an unreadable block follows.

    Without `caches`, no block of the walk takes the place of one that reads have put into the cache. The loop compares the
    bounds itself: rocksdict encodes bounds in ReadOptions as if the store were not raw."""
    options = ReadOptions()
    options.fill_cache(caches)  # type: ignore[call-arg]  # the stub lacks the argument
    if reverse:
        last = stop
        for last, stored in _raw(db.items(backwards=True, from_key=stop, read_opt=options)):
            if start is not None and last < start:
                return
            if last != stop:
                yield last, stored
    else:
        last = start
        for last, stored in _raw(db.items(from_key=start, read_opt=options)):
            if stop is not None and last >= stop:
                return
            yield last, stored
    _check_end(db, last, reverse)


def read_all(db: Rdict) -> None:
    """Read every block, and raise if one is unreadable. Other threads run meanwhile."""
    options = ReadOptions()
    options.set_readahead_size(_AHEAD_BYTES)
    options.fill_cache(False)  # type: ignore[call-arg]
    keys, last = db.keys(read_opt=options), None
    rest_at = time.perf_counter() + _STEP_SECONDS
    while some := deque(islice(keys, _ROWS), maxlen=1):
        last = some[0]
        if time.perf_counter() > rest_at:
            time.sleep(0)
            rest_at = time.perf_counter() + _STEP_SECONDS
    del keys  # otherwise an error would keep the store open
    _check_end(db, last, reverse=False)


def _check_end(db: Rdict, last: Any, reverse: bool) -> None:
    """Raise if an unreadable block follows `last`: rocksdict's `items` ends there as if the rows had ended."""
    steps = db.iter()
    try:
        if reverse:
            steps.seek_to_last() if last is None else steps.seek_for_prev(last)
        else:
            steps.seek_to_first() if last is None else steps.seek(last)
        if last is not None and steps.valid():
            steps.prev() if reverse else steps.next()
        steps.status()
    finally:
        del steps  # otherwise an error would keep the store open


def _raw(items: Any) -> Iterator[tuple[bytes, bytes]]:
    """Narrow rocksdict's types: keys and values of a raw store are bytes."""
    return items  # type: ignore[no-any-return]
