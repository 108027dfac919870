"""`qtopic windows` and `qtopic top`: read windows of one key or of all keys, and the best ones."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import click

from queryable_app.client.exceptions import QueryableTopicError
from queryable_app.client.options import ReadSettings, parse_options
from queryable_app.commands.common import DATA, JSON, with_exit_codes
from queryable_app.commands.get import fail_read
from queryable_app.commands.node_options import URL
from queryable_app.commands.tables import print_table, shown_value
from queryable_app.commands.view import view_at


@click.command(
    name="windows",
    short_help="Read the windows of one key, or of all keys.",
    help=with_exit_codes(
        """Read the windows of KEY, or of all keys, and print them as a table.

        A window that is final does not change any more. Times are ISO 8601 or milliseconds since 1970.

        \b
        qtopic windows /cart
        qtopic windows /cart --from 2026-11-22T10:00:00Z --to 2026-11-22T11:00:00Z
        qtopic windows /cart --desc --limit 1         the newest window
        qtopic windows --json                         all keys, one JSON object a line
        """
    ),
)
@click.argument("key", required=False)
@URL
@DATA
@click.option("--from", "start", metavar="TIME", help="The earliest start of a window.")
@click.option("--to", "stop", metavar="TIME", help="The first start after those.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="The most windows.")
@click.option("--desc", is_flag=True, help="The last key and start first.")
@click.option("--deadline-ms", type=click.IntRange(1), help="How long the read may take.")
@JSON
def windows_command(
    key: str | None,
    urls: tuple[str, ...],
    data: Path | None,
    start: str | None,
    stop: str | None,
    limit: int,
    desc: bool,
    deadline_ms: int | None,
    as_json: bool,
) -> None:
    more = [f"limit={limit}", f"order={'desc' if desc else 'asc'}"]
    try:
        settings = parse_options({"deadline_ms": deadline_ms}, ReadSettings())
        with view_at(urls, data) as view:
            response = view.windows(key, start, stop, more, settings)
    except QueryableTopicError as error:
        fail_read(error, as_json)
    lines = response.body.decode(errors="replace")
    if as_json:
        click.echo(lines, nl=False)
    else:
        _print([json.loads(line, parse_float=Decimal) for line in lines.splitlines()])


@click.command(
    name="top",
    short_help="Read the windows or rows with the greatest values.",
    help=with_exit_codes(
        """Read the windows with the greatest results of the column BY, of all keys, and print them as a table.

        In a view with indexes, BY is an index, and the rows with its greatest values are printed.

        Times are ISO 8601 or milliseconds since 1970. The read passes over windows that start at other times.

        \b
        qtopic top by-views -k 3
        qtopic top views --from 2026-11-22T10:00:00Z --to 2026-11-22T10:01:00Z
        qtopic top views -k 3 --asc                   the least results
        qtopic top views --json                       one JSON object with the list items
        """
    ),
)
@click.argument("by")
@URL
@DATA
@click.option(
    "-k",
    "--limit",
    "k",
    type=click.IntRange(1, 1000),
    default=10,
    show_default=True,
    help="How many windows.",
)
@click.option("--from", "start", metavar="TIME", help="The earliest start of a window.")
@click.option("--to", "stop", metavar="TIME", help="The first start after those.")
@click.option("--asc", is_flag=True, help="The least results instead of the greatest.")
@click.option("--deadline-ms", type=click.IntRange(1), help="How long the read may take.")
@JSON
def top_command(
    by: str,
    urls: tuple[str, ...],
    data: Path | None,
    k: int,
    start: str | None,
    stop: str | None,
    asc: bool,
    deadline_ms: int | None,
    as_json: bool,
) -> None:
    try:
        settings = parse_options({"deadline_ms": deadline_ms}, ReadSettings())
        with view_at(urls, data) as view:
            response = view.top(by, k, "asc" if asc else "desc", start, stop, settings)
    except QueryableTopicError as error:
        fail_read(error, as_json)
    body = response.body.decode(errors="replace")
    if as_json:
        click.echo(body)
    else:
        _print(json.loads(body, parse_float=Decimal)["items"])


def _print(items: list[dict[str, Any]]) -> None:
    """Print a row for each window, or for each row of an index, with a column for each field."""
    if all("window" in item for item in items):
        print_table(items, ("KEY", "START", "END", "FINAL"), _cells)
    else:
        print_table(items, ("KEY",), lambda item: (shown_value(item["key"]),))


def _cells(item: dict[str, Any]) -> tuple[str, str, str, str]:
    window = item["window"]
    return shown_value(item["key"]), window["start"], window["end"], "yes" if window["final"] else "no"
