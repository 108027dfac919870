"""`qtopic entries`: read the entries of one key, or of all keys, in the order of their times."""

from __future__ import annotations

from typing import Any

import click

from queryable_app.commands.common import with_exit_codes
from queryable_app.commands.rows import common_options, print_rows


@click.command(
    name="entries",
    short_help="Read the entries of one key by their time, or of all keys.",
    help=with_exit_codes(
        """Read the entries of KEY from the time --from up to, and without, --to, and print them as a table. Without KEY, read
        those of all keys.

        Times are ISO 8601 or milliseconds since 1970. docs/queries.md describes entries.

        \b
        qtopic entries sensor-1
        qtopic entries sensor-1 --from 2026-11-22T10:00:00Z --to 2026-11-22T11:00:00Z
        qtopic entries sensor-1 --order desc --limit 1        the newest entry
        qtopic entries --all --json                           all keys, one JSON object a line
        qtopic entries sensor-1 --where "celsius > 30" --all --csv --fields celsius
        """
    ),
)
@click.argument("key", required=False)
@click.option("--from", "start", metavar="TIME", help="The earliest time of an entry.")
@click.option("--to", "stop", metavar="TIME", help="The first time after those.")
@click.option(
    "--order",
    type=click.Choice(("asc", "desc")),
    default="asc",
    show_default=True,
    help="desc: the newest entry first.",
)
@common_options
def entries_command(key: str | None, start: str | None, stop: str | None, order: str, **options: Any) -> None:
    print_rows(
        lambda view, *rest: view.entries(key, start, stop, *rest),
        desc=order == "desc",
        columns=("key", "time"),
        **options,
    )
