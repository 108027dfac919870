"""Share what both clients and their sessions do before a transport sends anything: check options, create operations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar, Unpack

from queryable_app.client.keys import Key
from queryable_app.client.operations import Operations
from queryable_app.client.options import ReadOptions, ReadSettings, parse_options
from queryable_app.client.placement_map import checked_address
from queryable_app.client.scan import PAGE_ROWS, Scan
from queryable_app.client.session import SessionPositions
from queryable_app.client.windows import Time
from queryable_app.wire.cursors import Order

RowsT = TypeVar("RowsT")


def operations_for(url: str | Sequence[str], clock: Callable[[], float]) -> Operations:
    """Return the operations of a client with these addresses. Raises InvalidRequest."""
    return Operations([checked_address(each) for each in ([url] if isinstance(url, str) else url)], clock)


class PageReader:
    """Show how far an iterator of rows is."""

    def __init__(self, scan: Scan) -> None:
        self._scan = scan

    @property
    def cursor(self) -> str | None:
        """Where the next page begins. Another iterator, also in another process, continues from it."""
        return self._scan.cursor

    @property
    def missing(self) -> frozenset[int]:
        """With `partial`: the partitions whose rows may be missing from the pages so far."""
        return self._scan.missing


class Reads(ABC, Generic[RowsT]):
    """Check the options of each read, and start scans, whose iterators are of type `RowsT`."""

    def __init__(
        self, operations: Operations, defaults: ReadSettings, positions: SessionPositions | None = None
    ) -> None:
        self._operations = operations
        self._defaults = defaults
        self._positions = positions

    def scan(
        self,
        *,
        order: Order = "asc",
        limit: int | None = None,
        page_rows: int = PAGE_ROWS,
        cursor: str | None = None,
        partial: bool = False,
        **options: Unpack[ReadOptions],
    ) -> RowsT:
        """Iterate over all rows in key order.

        for row in users.scan(): print(row.key, row.value)  # with asyncio: async for
        """
        settings = self._settings(options)
        return self._from_cursor(self._operations.scan(settings, order, limit, page_rows, partial), cursor)

    def range(
        self,
        start: Key | None = None,
        stop: Key | None = None,
        *,
        order: Order = "asc",
        limit: int | None = None,
        page_rows: int = PAGE_ROWS,
        cursor: str | None = None,
        partial: bool = False,
        **options: Unpack[ReadOptions],
    ) -> RowsT:
        """Iterate over the rows from `start` up to, and without, `stop`. None is unbounded.

        newest = list(orders.range(1000, 2000, order="desc", limit=10))  # with asyncio: [row async for row in ..]
        """
        settings = self._settings(options)
        scan = self._operations.range(start, stop, settings, order, limit, page_rows, partial)
        return self._from_cursor(scan, cursor)

    def prefix(
        self,
        prefix: str | bytes,
        *,
        order: Order = "asc",
        limit: int | None = None,
        page_rows: int = PAGE_ROWS,
        cursor: str | None = None,
        partial: bool = False,
        **options: Unpack[ReadOptions],
    ) -> RowsT:
        """Iterate over the rows whose key begins with these bytes. Not for views whose keys are numbers.

        for row in users.prefix("user-"): print(row.key)  # with asyncio: async for
        """
        settings = self._settings(options)
        scan = self._operations.prefix(prefix, settings, order, limit, page_rows, partial)
        return self._from_cursor(scan, cursor)

    def windows(
        self,
        key: Key | None = None,
        start: Time | None = None,
        stop: Time | None = None,
        *,
        order: Order = "asc",
        limit: int | None = None,
        page_rows: int = PAGE_ROWS,
        cursor: str | None = None,
        partial: bool = False,
        **options: Unpack[ReadOptions],
    ) -> RowsT:
        """Iterate over the windows that start from `start` up to, and without, `stop`: of a key, or of all keys by key and
        start. For views with windows.

        for row in views.windows("/cart", "2026-11-22T10:00:00Z"): print(row.window, row.value)  # with asyncio: async for
        """
        settings = self._settings(options)
        scan = self._operations.windows(key, start, stop, settings, order, limit, page_rows, partial)
        return self._from_cursor(scan, cursor)

    @abstractmethod
    def _rows(self, scan: Scan) -> RowsT:
        """Return an iterator over the rows of a scan."""

    def _from_cursor(self, scan: Scan, cursor: str | None) -> RowsT:
        scan.cursor = cursor
        return self._rows(scan)

    def _settings(self, options: ReadOptions) -> ReadSettings:
        return parse_options(options, self._defaults)

    def _within(self, deadline_ms: int | None) -> ReadSettings:
        return self._settings({} if deadline_ms is None else {"deadline_ms": deadline_ms})
