"""Keep the state of a scan, which reads one page at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from queryable_app.client.exceptions import InvalidRequest
from queryable_app.client.options import ReadSettings
from queryable_app.client.placement_map import PlacementMap
from queryable_app.client.rows import Page, Row
from queryable_app.errors import shown
from queryable_app.wire.cursors import Order

PAGE_ROWS: Final = 1_000
_PAGE_ROWS_MAX: Final = 10_000


@dataclass(slots=True)
class Scan:
    """Keep what a scan reads, the rows that are ready, and the cursor of its next page. Any node takes the cursor."""

    path: Callable[[PlacementMap], tuple[str, list[str]]]
    settings: ReadSettings
    order: Order
    page_rows: int
    rows_left: int | None
    partial: bool
    selection: tuple[str, ...] = ()
    """The parameters for conditions and fields."""
    as_of: tuple[str, ...] = ()
    """The parameter for the moment. Without one the newest rows are read."""
    cursor: str | None = None
    ended: bool = False
    ready: deque[Row] = field(default_factory=deque)
    missing: frozenset[int] = frozenset()

    def parameters(self) -> list[str]:
        """Return the parameters of the next page, besides those of the path."""
        rows = self.page_rows if self.rows_left is None else min(self.page_rows, self.rows_left)
        cursor = [] if self.cursor is None else [f"cursor={self.cursor}"]
        partial = ["partial=allow"] if self.partial else []
        return [f"limit={rows}", f"order={self.order}", *self.selection, *self.as_of, *cursor, *partial]

    def add(self, page: Page) -> None:
        """Take in the page that was read."""
        self.ready.extend(page.rows)
        self.missing |= page.missing
        self.go_on(page.cursor, len(page.rows))

    def go_on(self, cursor: str | None, rows: int) -> None:
        """Note where the next page begins, after one with so many rows."""
        self.cursor = cursor
        if self.rows_left is not None:
            self.rows_left -= rows
        self.ended = cursor is None or self.rows_left == 0


def new_scan(
    path: Callable[[PlacementMap], tuple[str, list[str]]],
    settings: ReadSettings,
    order: Order,
    limit: int | None,
    page_rows: int,
    partial: bool,
    selection: Sequence[str] = (),
) -> Scan:
    """Return a scan at its beginning. Raises InvalidRequest."""
    if order not in ("asc", "desc"):
        raise InvalidRequest(f"order: {shown(order)} is not one of asc, desc", "give one of them")
    if not 1 <= page_rows <= _PAGE_ROWS_MAX:
        raise InvalidRequest(f"page_rows: {page_rows} is not allowed", f"give 1 to {_PAGE_ROWS_MAX}")
    if limit is not None and limit < 0:
        raise InvalidRequest(f"limit: {limit} is not allowed", "give how many rows you want, or None for all")
    return Scan(path, settings, order, page_rows, limit, partial, tuple(selection), ended=limit == 0)
