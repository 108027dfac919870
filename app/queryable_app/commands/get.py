"""`qtopic get`: read one key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final, NoReturn

import click

from queryable_app.client.attempts import Response
from queryable_app.client.exceptions import QueryableTopicError, Unreachable
from queryable_app.client.history import moment_parameters
from queryable_app.client.options import ReadSettings, parse_options
from queryable_app.commands.common import (
    BROKEN,
    DATA,
    INVALID,
    JSON,
    NOT_FOUND,
    NOT_NOW,
    UNREACHABLE,
    fail,
    with_exit_codes,
)
from queryable_app.commands.node_options import URL
from queryable_app.commands.view import view_at
from queryable_app.errors import Failure, Reason

_RETRY_STATUSES: Final = frozenset({421, 429, 503, 504})


@click.command(
    name="get",
    help=with_exit_codes(
        """Read one KEY and print its value.

        Without --url and --data, it reads from the newest `qtopic run` on this machine.

        \b
        qtopic get user-1
        qtopic get user-1 --consistency strong
        qtopic get user-1 --min-position 2:17      read your own write
        qtopic get user-1 --as-of 2026-11-22T10:00:00Z
        qtopic get user-1 --json                   with offset and lag
        """
    ),
)
@click.argument("key")
@URL
@DATA
@click.option(
    "--consistency",
    type=click.Choice(["any", "bounded", "at-least", "strong"]),
    help="How fresh the value must be.  [default: the view's own consistency]",
)
@click.option(
    "--max-lag-ms", type=click.IntRange(0), help="For bounded and at-least: how far a replica may lag."
)
@click.option(
    "--min-position",
    multiple=True,
    metavar="PARTITION:OFFSET",
    help="For at-least: a position that the replica must have reached; repeatable.",
)
@click.option(
    "--deadline-ms", type=click.IntRange(1), help="How long the read may take, with the wait for freshness."
)
@click.option(
    "--as-of",
    metavar="MOMENT",
    help="The value of then, in a view with history: a time, or PARTITION:OFFSET.",
)
@JSON
def get_command(
    key: str,
    urls: tuple[str, ...],
    data: Path | None,
    consistency: str | None,
    max_lag_ms: int | None,
    min_position: tuple[str, ...],
    deadline_ms: int | None,
    as_of: str | None,
    as_json: bool,
) -> None:
    options = {
        "consistency": consistency,
        "max_lag_ms": max_lag_ms,
        "min_position": ",".join(min_position) or None,
        "deadline_ms": deadline_ms,
    }
    try:
        settings = parse_options(options, ReadSettings())
        with view_at(urls, data) as view:
            response = view.get(key, settings, moment_parameters(as_of))
    except QueryableTopicError as error:
        fail_read(error, as_json)
    if response.status == 404:
        _fail_not_found(response, as_json)
    click.echo(_described(key, response) if as_json else response.body)


def _described(key: str, response: Response) -> str:
    """Return the value, and where it is, as JSON. The value stays as the node wrote it: parsing could change its numbers."""
    headers = response.headers
    described = {
        "partition": _number(headers.get("qt-partition")),
        "offset": _number(headers.get("qt-offset")),
        "position": headers.get("qt-position"),
        "role": headers.get("qt-role"),
        "lagRecords": _number(headers.get("qt-lag-records")),
        "lagMs": _number(headers.get("qt-lag-ms")),
        "servedBy": headers.get("qt-served-by"),
    }
    key_text, value = json.dumps(key, ensure_ascii=False), response.body.decode(errors="replace")
    return f'{{"key": {key_text}, "value": {value}, {json.dumps(described, ensure_ascii=False)[1:]}'


def _number(text: str | None) -> int | None:
    return int(text) if text is not None else None


def _fail_not_found(response: Response, as_json: bool) -> NoReturn:
    problem = json.loads(response.body)
    if as_json:
        click.echo(json.dumps(problem))
    fail(NOT_FOUND, f"{problem['detail']}: {problem['advice']}")


def fail_read(error: QueryableTopicError, as_json: bool) -> NoReturn:
    """End with the words of the node, or of the client, and the exit code of the reason."""
    if isinstance(error, Unreachable):
        fail(
            UNREACHABLE,
            f"no node answers ({error.detail}): start them with `qtopic run`, or name a node with --url",
        )
    if as_json:
        click.echo(json.dumps(_failure_of(error).problem()))
    text = f"{error.detail}: {error.advice}"
    if error.reason is Reason.UNAUTHENTICATED:
        text += ". qtopic takes a token from --token-file or $QTOPIC_TOKEN, and a certificate from --cert"
    if error.status in _RETRY_STATUSES:
        fail(NOT_NOW, text)
    fail(INVALID if 400 <= error.status < 500 else BROKEN, text)


def _failure_of(error: QueryableTopicError) -> Failure:
    return Failure(
        error.reason,
        error.detail,
        error.advice,
        error.partition,
        error.position,
        error.retry_after_ms,
        error.missing,
    )
