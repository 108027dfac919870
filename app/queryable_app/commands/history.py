"""`qtopic history`: print the versions of one key."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import click

from queryable_app.client.exceptions import QueryableTopicError
from queryable_app.client.options import ReadSettings, parse_options
from queryable_app.commands.common import DATA, JSON, with_exit_codes
from queryable_app.commands.get import fail_read
from queryable_app.commands.node_options import URL
from queryable_app.commands.tables import print_table
from queryable_app.commands.view import view_at
from queryable_app.wire.times import to_iso


@click.command(
    name="history",
    short_help="Print the versions of one key.",
    help=with_exit_codes(
        """Read the versions of KEY that a view with history keeps, the newest first, and print them as a table.

        A MOMENT is a time (ISO 8601, or milliseconds since 1970) or a position, PARTITION:OFFSET.

        \b
        qtopic history user-1
        qtopic history user-1 --from 2026-11-22T10:00:00Z --asc
        qtopic history user-1 --limit 1000 --json      one JSON object a line
        """
    ),
)
@click.argument("key")
@URL
@DATA
@click.option("--from", "start", metavar="MOMENT", help="The first moment at which a version began to count.")
@click.option("--to", "stop", metavar="MOMENT", help="The first moment after those.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="The most versions.")
@click.option("--asc", is_flag=True, help="The oldest version first.")
@click.option("--deadline-ms", type=click.IntRange(1), help="How long each page may take.")
@JSON
def history_command(
    key: str,
    urls: tuple[str, ...],
    data: Path | None,
    start: str | None,
    stop: str | None,
    limit: int,
    asc: bool,
    deadline_ms: int | None,
    as_json: bool,
) -> None:
    try:
        settings = parse_options({"deadline_ms": deadline_ms}, ReadSettings())
        with view_at(urls, data) as view:
            scan = view.history(key, start, stop, "asc" if asc else "desc", limit, settings)
            items = view.items(scan)
            if as_json:
                for item in items:
                    click.echo(item)
                return
            versions = [json.loads(item, parse_float=Decimal) for item in items]
    except QueryableTopicError as error:
        fail_read(error, as_json)
    for version in versions:
        if version.get("deleted"):
            version["value"] = {}
    print_table(
        versions,
        ("PARTITION", "OFFSET", "TIMESTAMP", "DELETED"),
        lambda version: (
            str(version["partition"]),
            str(version["offset"]),
            to_iso(version["timestamp"]),
            "yes" if version.get("deleted") else "no",
        ),
    )
