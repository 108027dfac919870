"""`qtopic watch`: print changes as they happen."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Final

import click

from queryable_app.client.changes import Change, new_following
from queryable_app.client.exceptions import DeadlineExceeded, NotAvailable, Overloaded, QueryableTopicError
from queryable_app.commands.common import DATA, JSON, with_exit_codes
from queryable_app.commands.get import fail_read
from queryable_app.commands.node_options import URL
from queryable_app.commands.view import typed_key, view_at
from queryable_app.wire.times import to_iso

_RETRY_SECONDS: Final = 1.0


@click.command(
    name="watch",
    short_help="Print the changes of a view as they happen.",
    help=with_exit_codes(
        """Print the changes of KEY, or of all keys, as they happen, until Ctrl-C.

        The view must have `view.changes: true`. A node that is lost interrupts nothing: another one continues.

        \b
        qtopic watch
        qtopic watch user-1
        qtopic watch --prefix user- --where "age > 30"
        qtopic watch --from start                     all rows first, then the changes
        qtopic watch --json                           one JSON object a line
        """
    ),
)
@click.argument("key", required=False)
@URL
@DATA
@click.option("--prefix", help="Only keys that begin so.")
@click.option("--where", metavar="CONDITIONS", help="Only values that match, and deletions.")
@click.option(
    "--from",
    "start",
    default="latest",
    show_default=True,
    metavar="POSITION",
    help="latest, start, or the position that an earlier watch printed at its end.",
)
@JSON
def watch_command(
    key: str | None,
    urls: tuple[str, ...],
    data: Path | None,
    prefix: str | None,
    where: str | None,
    start: str,
    as_json: bool,
) -> None:
    waiting = False
    try:
        following = new_following(None if key is None else typed_key(key), prefix, where, start, 0)
        with view_at(urls, data) as view:
            while True:
                try:
                    view.next_changes(following)
                except (NotAvailable, Overloaded, DeadlineExceeded) as error:
                    if not waiting:
                        click.echo(f"waiting: {error.detail}", err=True)
                    waiting = True
                    time.sleep(_RETRY_SECONDS)
                    continue
                waiting = False
                while (change := following.take()) is not None:
                    click.echo(_json(change) if as_json else _text(change))
    except QueryableTopicError as error:
        fail_read(error, as_json)
    except KeyboardInterrupt:
        click.echo(f"the next watch continues with --from {following.read_to}", err=True)


def _json(change: Change) -> str:
    fields = {"key": change.key, "value": change.value, "deleted": change.deleted}
    where = {"partition": change.partition, "offset": change.offset, "timestamp": change.timestamp}
    if change.window_start_ms is not None:
        fields["window"] = {name: to_iso(time_ms) for name, time_ms in _window(change).items()}
    return json.dumps(fields | where, ensure_ascii=False, default=_base64)


def _base64(value: object) -> str:
    """Return bytes, such as a key that its format cannot express, as text."""
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)


def _text(change: Change) -> str:
    key = change.key if isinstance(change.key, str) else _base64(change.key)
    value = "(deleted)" if change.deleted else json.dumps(change.value, ensure_ascii=False, default=_base64)
    window = "".join([f"  {to_iso(time_ms)}" for time_ms in _window(change).values()])
    return f"{to_iso(change.timestamp)}  {key}{window}  {value}"


def _window(change: Change) -> dict[str, int]:
    times = {"start": change.window_start_ms, "end": change.window_end_ms}
    return {name: time_ms for name, time_ms in times.items() if time_ms is not None}
