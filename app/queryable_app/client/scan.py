"""Rows that are read a page at a time: what is asked for, and how far it is."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from queryable_app.client.exceptions import InvalidRequest
from queryable_app.client.options import Order, ReadSettings
from queryable_app.client.placement_map import PlacementMap
from queryable_app.client.rows import Page, Row
from queryable_app.errors import shown

PAGE_ROWS: Final = 1_000
_PAGE_ROWS_MAX: Final = 10_000


@dataclass(slots=True)
class Scan:
    """Rows that are read a page at a time. What is not read yet is a cursor, which any node can go on from."""

    path: Callable[[PlacementMap], tuple[str, list[str]]]
    asked: ReadSettings
    order: Order
    page_rows: int
    left: int | None
    partial: bool
    cursor: str | None = None
    ended: bool = False
    ready: deque[Row] = field(default_factory=deque)
    missing: frozenset[int] = frozenset()

    def parameters(self) -> list[str]:
        """Of the next page, besides those of the path."""
        rows = self.page_rows if self.left is None else min(self.page_rows, self.left)
        cursor = [] if self.cursor is None else [f"cursor={self.cursor}"]
        partial = ["partial=allow"] if self.partial else []
        return [f"limit={rows}", f"order={self.order}", *cursor, *partial]

    def add(self, page: Page) -> None:
        self.ready.extend(page.rows)
        self.cursor = page.cursor
        self.missing |= page.missing
        if self.left is not None:
            self.left -= len(page.rows)
        self.ended = page.cursor is None or self.left == 0


def new_scan(
    path: Callable[[PlacementMap], tuple[str, list[str]]],
    asked: ReadSettings,
    order: Order,
    limit: int | None,
    page_rows: int,
    partial: bool,
) -> Scan:
    if order not in ("asc", "desc"):
        raise InvalidRequest(f"order: {shown(order)} is not one of asc, desc", "give one of them")
    if not 1 <= page_rows <= _PAGE_ROWS_MAX:
        raise InvalidRequest(f"page_rows: {page_rows} is not allowed", f"give 1 to {_PAGE_ROWS_MAX}")
    if limit is not None and limit < 0:
        raise InvalidRequest(f"limit: {limit} is not allowed", "give how many rows you want, or None for all")
    return Scan(path, asked, order, page_rows, limit, partial, ended=limit == 0)
