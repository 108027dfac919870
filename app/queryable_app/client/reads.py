"""Share what both clients and their sessions do before a transport sends anything: check options, create operations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from random import randrange
from typing import Generic, TypeVar, Unpack

from queryable_app.client.changes import Following, new_following
from queryable_app.client.entries import entries_target
from queryable_app.client.history import Moment, history_target, moment_parameters
from queryable_app.client.indexes import IndexValue, index_target
from queryable_app.client.keys import Key
from queryable_app.client.operations import Operations
from queryable_app.client.options import ReadOptions, ReadSettings, parse_options
from queryable_app.client.placement_map import checked_address
from queryable_app.client.scan import PAGE_ROWS, Scan, new_scan
from queryable_app.client.selection import Fields, selection_parameters
from queryable_app.client.session import SessionPositions
from queryable_app.client.windows import Time, windows_target
from queryable_app.wire.cursors import Order

RowsT = TypeVar("RowsT")
ChangesT = TypeVar("ChangesT")
GroupsT = TypeVar("GroupsT")


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


class ChangesReader:
    """Show how far an iterator of changes is."""

    def __init__(self, following: Following) -> None:
        self._following = following

    @property
    def position(self) -> str:
        """Everything before it has been returned, and up to a page behind it. `changes(start=...)` continues from it, also in
        another process."""
        return self._following.read_to


class Reads(ABC, Generic[RowsT, ChangesT, GroupsT]):
    """Check the options of each read, and start scans and feeds, whose iterators are of the types in brackets."""

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
        where: str | None = None,
        fields: Fields | None = None,
        as_of: str | Mapping[int, int] | None = None,
        **options: Unpack[ReadOptions],
    ) -> RowsT:
        """Iterate over all rows in key order: those that match `where`, and of each value the `fields`. In a view with history,
        `as_of` names one position of each partition: the rows are those of then.

        for row in users.scan(where="age >= 18"): print(row.key, row.value)  # with asyncio: async for
        """
        settings = self._settings(options)
        selection = selection_parameters(where, fields)
        scan = self._operations.scan(settings, order, limit, page_rows, partial, selection)
        return self._from_cursor(scan, cursor, as_of)

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
        where: str | None = None,
        fields: Fields | None = None,
        as_of: str | Mapping[int, int] | None = None,
        **options: Unpack[ReadOptions],
    ) -> RowsT:
        """Iterate over the rows from `start` up to, and without, `stop`. None is unbounded. `as_of` is that of `scan`.

        newest = list(orders.range(1000, 2000, order="desc", limit=10))  # with asyncio: [row async for row in ..]
        """
        settings = self._settings(options)
        selection = selection_parameters(where, fields)
        scan = self._operations.range(start, stop, settings, order, limit, page_rows, partial, selection)
        return self._from_cursor(scan, cursor, as_of)

    def index(
        self,
        name: str,
        eq: IndexValue | None = None,
        *,
        start: IndexValue | None = None,
        stop: IndexValue | None = None,
        order: Order = "asc",
        limit: int | None = None,
        page_rows: int = PAGE_ROWS,
        cursor: str | None = None,
        partial: bool = False,
        where: str | None = None,
        fields: Fields | None = None,
        **options: Unpack[ReadOptions],
    ) -> RowsT:
        """Iterate over the rows whose indexed value is `eq`, or from `start` up to, and without, `stop`, in the order of the
        values.

            of_ada = list(articles.index("by-author", "ada"))
        """
        settings, selection = self._settings(options), selection_parameters(where, fields)
        target = index_target(name, eq, start, stop)
        scan = new_scan(lambda _: target, settings, order, limit, page_rows, partial, selection)
        return self._from_cursor(scan, cursor)

    def index_groups(
        self,
        name: str,
        *,
        start: IndexValue | None = None,
        stop: IndexValue | None = None,
        order: Order = "asc",
        limit: int | None = None,
        **options: Unpack[ReadOptions],
    ) -> GroupsT:
        """Return an iterator over the values of an index from `start` up to, and without, `stop`, each with its number of rows.

        for group in articles.index_groups("by-author"): print(group.value, group.count)  # with asyncio: async for
        """
        target = index_target(name, None, start, stop, "/groups")
        return self._groups(
            new_scan(lambda _: target, self._settings(options), order, limit, PAGE_ROWS, False)
        )

    def history(
        self,
        key: Key,
        start: Moment | None = None,
        stop: Moment | None = None,
        *,
        order: Order = "desc",
        limit: int | None = None,
        page_rows: int = PAGE_ROWS,
        cursor: str | None = None,
        partial: bool = False,
        fields: Fields | None = None,
        **options: Unpack[ReadOptions],
    ) -> RowsT:
        """Iterate over the versions of a key that are kept, the newest first: those that began to count from the moment `start`
        on and before `stop`. For views with history.

        for version in users.history("user-1"): print(version.offset, version.deleted, version.value)
        """
        settings, selection = self._settings(options), selection_parameters(fields=fields)
        target = history_target(key, start, stop)
        scan = new_scan(target, settings, order, limit, page_rows, partial, selection)
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
        where: str | None = None,
        fields: Fields | None = None,
        as_of: str | Mapping[int, int] | None = None,
        **options: Unpack[ReadOptions],
    ) -> RowsT:
        """Iterate over the rows whose key begins with these bytes. Not for views whose keys are numbers.
        `as_of` is that of `scan`.

        for row in users.prefix("user-"): print(row.key)  # with asyncio: async for
        """
        settings = self._settings(options)
        selection = selection_parameters(where, fields)
        scan = self._operations.prefix(prefix, settings, order, limit, page_rows, partial, selection)
        return self._from_cursor(scan, cursor, as_of)

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
        where: str | None = None,
        fields: Fields | None = None,
        **options: Unpack[ReadOptions],
    ) -> RowsT:
        """Iterate over the windows that start from `start` up to, and without, `stop`: of a key, or of all keys by key and
        start. For views with windows.

        for row in views.windows("/cart", "2026-11-22T10:00:00Z"): print(row.window, row.value)  # with asyncio: async for
        """
        settings, selection = self._settings(options), selection_parameters(where, fields)
        target = windows_target(key, start, stop)
        scan = new_scan(target, settings, order, limit, page_rows, partial, selection)
        return self._from_cursor(scan, cursor)

    def entries(
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
        where: str | None = None,
        fields: Fields | None = None,
        **options: Unpack[ReadOptions],
    ) -> RowsT:
        """Iterate over the entries of a key with times from `start` up to, and without, `stop`, in the order of their times; or
        over those of all keys, by key and time. For views of entries.

        for row in readings.entries("sensor-1", "2026-11-22T10:00:00Z"): print(row.time_ms, row.value)  # asyncio: async for
        """
        settings, selection = self._settings(options), selection_parameters(where, fields)
        target = entries_target(key, start, stop)
        scan = new_scan(target, settings, order, limit, page_rows, partial, selection)
        return self._from_cursor(scan, cursor)

    def changes(
        self,
        key: Key | None = None,
        *,
        prefix: str | bytes | None = None,
        where: str | None = None,
        start: str = "latest",
    ) -> ChangesT:
        """Iterate over the changes of all keys, of one key, or of those with a prefix, without an end. For views with
        `changes: true`. `start` is "latest", "start" for all rows first, or the `position` of an earlier iterator.

        for change in users.changes(): print(change.key, change.value)  # with asyncio: async for
        """
        return self._changes(new_following(key, prefix, where, start, randrange(1 << 16)))  # noqa: S311 - it spreads load

    @abstractmethod
    def _changes(self, following: Following) -> ChangesT:
        """Return an iterator over changes."""

    @abstractmethod
    def _groups(self, scan: Scan) -> GroupsT:
        """Return an iterator over the values of an index."""

    @abstractmethod
    def _rows(self, scan: Scan) -> RowsT:
        """Return an iterator over the rows of a scan."""

    def _from_cursor(self, scan: Scan, cursor: str | None, as_of: Moment | None = None) -> RowsT:
        scan.cursor, scan.as_of = cursor, moment_parameters(as_of)
        return self._rows(scan)

    def _settings(self, options: ReadOptions) -> ReadSettings:
        return parse_options(options, self._defaults)

    def _within(self, deadline_ms: int | None) -> ReadSettings:
        return self._settings({} if deadline_ms is None else {"deadline_ms": deadline_ms})
