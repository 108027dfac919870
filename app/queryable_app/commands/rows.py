"""`qtopic scan`, `range`, `prefix` and `index`: read many rows, those whose values match, and their fields."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any, Final, NoReturn

import click

from queryable_app.client.exceptions import QueryableTopicError
from queryable_app.client.history import moment_parameters
from queryable_app.client.indexes import index_target
from queryable_app.client.options import ReadSettings, parse_options
from queryable_app.client.scan import Scan
from queryable_app.client.selection import selection_parameters
from queryable_app.commands.common import BROKEN, DATA, INVALID, JSON, fail, with_exit_codes
from queryable_app.commands.get import fail_read
from queryable_app.commands.node_options import URL
from queryable_app.commands.tables import print_table, shown_value
from queryable_app.commands.view import View, view_at
from queryable_app.errors import Failure
from queryable_app.wire.cursors import Order
from queryable_app.wire.json_paths import getter
from queryable_app.wire.projection import Projection, parse_projection

_TABLE_ROWS_MAX: Final = 10_000  # a table is as wide as its widest row, so it needs all of them

_AS_OF: Final = click.option(
    "--as-of",
    metavar="POSITIONS",
    help="The rows of then, in a view with history: 0:17,1:20 of all partitions.",
)

Target = Callable[[View, Order, int | None, tuple[str, ...], ReadSettings], Scan]


def common_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that every command for rows has."""
    for option in (
        JSON,
        click.option(
            "--csv", "as_csv", is_flag=True, help="Print CSV: the key, then the value or each of --fields."
        ),
        click.option("--deadline-ms", type=click.IntRange(1), help="How long the read of a page may take."),
        click.option("--all", "everything", is_flag=True, help="All rows, with --json or --csv."),
        click.option(
            "--limit", type=click.IntRange(1), default=100, show_default=True, help="The most rows."
        ),
        click.option("--fields", metavar="FIELDS", help="The fields of each value: status,customer.name"),
        click.option(
            "--where", metavar="CONDITIONS", help="The rows that match: \"status = 'paid' and total > 9\""
        ),
        DATA,
        URL,
    ):
        command = option(command)
    return command


def _options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that all these commands have."""
    desc = click.option("--desc", is_flag=True, help="The last key, or the greatest value, first.")
    return desc(common_options(command))


@click.command(
    name="scan",
    short_help="Read the rows of all keys, or those that match.",
    help=with_exit_codes(
        """Read the rows of all keys in key order, and print them as a table.

        docs/queries.md has the language of --where and --fields.

        \b
        qtopic scan
        qtopic scan --where "status = 'paid' and total > 100" --fields status,total
        qtopic scan --as-of 0:17,1:20         the rows as of a position of each partition
        qtopic scan --all --json              one JSON object a line, as the nodes write it
        qtopic scan --all --csv --fields status,customer.name
        """
    ),
)
@_AS_OF
@_options
def scan_command(**options: Any) -> None:
    print_rows(View.scan, **options)


@click.command(
    name="range",
    short_help="Read the rows of a range of keys.",
    help=with_exit_codes(
        """Read the rows from the key --from up to, and without, the key --to, and print them as a table.

        \b
        qtopic range --from user-1 --to user-5
        qtopic range --from user-1 --where "age >= 18" --json
        """
    ),
)
@click.option("--from", "start", metavar="KEY", help="The first key.")
@click.option("--to", "stop", metavar="KEY", help="The first key after the range.")
@_AS_OF
@_options
def range_command(start: str | None, stop: str | None, **options: Any) -> None:
    print_rows(lambda view, *rest: view.range(start, stop, *rest), **options)


@click.command(
    name="prefix",
    short_help="Read the rows whose key begins with a text.",
    help=with_exit_codes(
        """Read the rows whose key begins with PREFIX, and print them as a table.

        \b
        qtopic prefix user-
        qtopic prefix user- --fields name,address.city --csv
        """
    ),
)
@click.argument("prefix")
@_AS_OF
@_options
def prefix_command(prefix: str, **options: Any) -> None:
    print_rows(lambda view, *rest: view.prefix(prefix, *rest), **options)


@click.command(
    name="index",
    short_help="Read the rows that an index finds.",
    help=with_exit_codes(
        """Read the rows of the index NAME, in the order of its values, and print them as a table.

        docs/queries.md describes indexes. `qtopic top NAME` prints the rows with the greatest values.

        \b
        qtopic index by-author --eq ada
        qtopic index by-published --from 2026-11-01T00:00:00Z --desc --limit 10
        qtopic index by-views --from 100 --where "author = 'ada'" --json
        qtopic index by-author --groups       each author once, with the number of rows
        """
    ),
)
@click.argument("name")
@click.option("--eq", metavar="VALUE", help="The indexed value.")
@click.option("--from", "start", metavar="VALUE", help="The first indexed value.")
@click.option("--to", "stop", metavar="VALUE", help="The first indexed value after the range.")
@click.option("--groups", is_flag=True, help="Print each value once, with its number of rows.")
@_options
def index_command(
    name: str, eq: str | None, start: str | None, stop: str | None, groups: bool, **options: Any
) -> None:
    if groups and (options["where"] or options["fields"]):
        raise click.UsageError("--groups counts all rows of each value: leave --where and --fields out")
    target = index_target(name, eq, start, stop, "/groups" if groups else "")
    columns = ("count",) if groups else ("key",)
    print_rows(lambda view, *rest: view.index(target, *rest), columns=columns, **options)


def print_rows(
    target: Target,
    urls: tuple[str, ...],
    data: Path | None,
    where: str | None,
    fields: str | None,
    limit: int,
    desc: bool,
    everything: bool,
    deadline_ms: int | None,
    as_json: bool,
    as_csv: bool,
    columns: Sequence[str] = ("key",),
    as_of: str | None = None,
) -> None:
    """Read rows, and print them. `columns` are the members of a row that come before its value."""
    as_lines = as_json or as_csv
    if as_json and as_csv:
        raise click.UsageError("--json and --csv are two forms: give one of them")
    if not as_lines and (everything or limit > _TABLE_ROWS_MAX):
        raise click.UsageError(f"a table has at most {_TABLE_ROWS_MAX} rows: print more with --json or --csv")
    named = None if fields is None else _projection(fields)
    try:
        settings = parse_options({"deadline_ms": deadline_ms}, ReadSettings())
        selection = selection_parameters(where, fields)
        with view_at(urls, data) as view:
            scan = target(view, "desc" if desc else "asc", None if everything else limit, selection, settings)
            scan.as_of = moment_parameters(as_of)
            items = view.items(scan)
            if as_json:
                for item in items:
                    click.echo(item)
            elif as_csv:
                _print_csv(items, named, columns)
            else:
                rows = [_parsed(item) for item in islice(items, limit)]
                heads = [column.upper() for column in columns]
                print_table(rows, heads, lambda item: [shown_value(item[column]) for column in columns])
    except QueryableTopicError as error:
        fail_read(error, as_json)


def _projection(fields: str) -> Projection:
    try:
        return parse_projection(fields.encode(errors="surrogateescape"))
    except Failure as failure:
        _fail_invalid(failure)


def _fail_invalid(failure: Failure) -> NoReturn:
    fail(INVALID, f"{failure.detail}: {failure.advice}")


def _print_csv(items: Iterable[str], named: Projection | None, columns: Sequence[str]) -> None:
    """Print a line for each item: its `columns`, and the fields in their order, or all of its value."""
    lines = csv.writer(sys.stdout, lineterminator="\n")
    paths = [()] if named is None else named.paths
    lines.writerow([*columns, *(".".join(map(str, path)) or "value" for path in paths)])
    getters = [getter(path) for path in paths]
    for item in map(_parsed, items):
        found = [get(item["value"]) for get in getters]
        lines.writerow(
            [
                *(shown_value(item[column]) for column in columns),
                *("" if each is None else shown_value(each) for each in found),
            ]
        )


def _parsed(item: str) -> dict[str, Any]:
    try:
        parsed: dict[str, Any] = json.loads(item, parse_float=Decimal)
        return parsed
    except RecursionError:
        fail(BROKEN, "a value is nested too deep for a table: print it with --json")
