"""Print items of a node's answer as a table: some columns that every item has, then one for each field of the values."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

_WIDTH_ELSEWHERE: Final = 10_000


def print_table(
    items: Sequence[dict[str, Any]], heads: Sequence[str], cells: Callable[[dict[str, Any]], Sequence[str]]
) -> None:
    """Print a row for each item: what `cells` returns below the `heads`, and the fields of its value."""
    # No column is cut in a file or a pipe.
    console = Console() if sys.stdout.isatty() else Console(width=_WIDTH_ELSEWHERE)
    console.print(_table(items, heads, cells))


def _table(
    items: Sequence[dict[str, Any]], heads: Sequence[str], cells: Callable[[dict[str, Any]], Sequence[str]]
) -> Table:
    values = [
        item["value"] if isinstance(item["value"], dict) else {"value": item["value"]} for item in items
    ]
    names = list(dict.fromkeys(name for value in values for name in value))
    table = Table(box=None, header_style="bold", pad_edge=False)
    for head in heads:
        table.add_column(head, no_wrap=True)
    for name in names:
        table.add_column(Text(name), justify="right")
    for item, value in zip(items, values, strict=True):
        table.add_row(*map(Text, (*cells(item), *(shown_value(value.get(name)) for name in names))))
    return table


def shown_value(value: Any) -> str:
    """Return a value as its JSON, and a text as it is. A number keeps its digits."""
    return value if isinstance(value, str) else _json(value)


def _json(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_json(name)}: {_json(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_json, value)) + "]"
    return str(value) if isinstance(value, Decimal) else json.dumps(value, ensure_ascii=False)
