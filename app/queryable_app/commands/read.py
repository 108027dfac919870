"""`qtopic get` and `qtopic status`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NoReturn

import click
import httpx
from rich.console import Console
from rich.table import Table

from queryable_app.commands.common import (
    BROKEN,
    DATA,
    INVALID,
    JSON,
    NOT_FOUND,
    NOT_NOW,
    UNREACHABLE,
    URL,
    described_run,
    fail,
    with_exit_codes,
)
from queryable_app.commands.node_client import NodeClient, Unreachable

_KEY_NOT_FOUND: Final = "key_not_found"
_RETRY_STATUSES: Final = frozenset({421, 429, 503, 504})


@click.command(
    name="get",
    help=with_exit_codes(
        """Reads one KEY and prints its value.

        Without --url and --data, the newest `qtopic run` of this machine is asked.

        \b
        qtopic get user-1
        qtopic get user-1 --consistency strong
        qtopic get user-1 --min-position 2:17      read your own write
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
    help="How fresh the answer must be.  [default: the view's own]",
)
@click.option("--max-lag-ms", type=click.IntRange(0), help="How old a bounded or at-least answer may be.")
@click.option(
    "--min-position",
    multiple=True,
    metavar="PARTITION:OFFSET",
    help="What the answer must have seen; repeatable.",
)
@click.option("--deadline-ms", type=click.IntRange(1), help="How long the node may wait for that freshness.")
@JSON
def get_command(
    key: str,
    urls: tuple[str, ...],
    data: Path | None,
    consistency: str | None,
    max_lag_ms: int | None,
    min_position: tuple[str, ...],
    deadline_ms: int | None,
    as_json: bool,
) -> None:
    if min_position and consistency is None:
        consistency = "at-least"
    asked: dict[str, str | list[str]] = {}
    for name, value in [
        ("consistency", consistency),
        ("max-lag-ms", max_lag_ms),
        ("deadline-ms", deadline_ms),
    ]:
        if value is not None:
            asked[name] = str(value)
    if min_position:
        asked["min-position"] = list(min_position)
    with _client(urls, data) as client:
        answer = _or_unreachable(lambda: client.get_key(key, asked))
    if not answer.is_success:
        _refused(answer, as_json)
    if not as_json:
        click.echo(answer.content)
        return
    headers = {name: answer.headers.get(f"qt-{name}") for name in ("partition", "offset", "position", "role")}
    about = {
        "partition": _number(headers["partition"]),
        "offset": _number(headers["offset"]),
        "position": headers["position"],
        "role": headers["role"],
        "lagRecords": _number(answer.headers.get("qt-lag-records")),
        "lagMs": _number(answer.headers.get("qt-lag-ms")),
        "servedBy": answer.headers.get("qt-served-by"),
    }
    # The value stands here as the node wrote it: parsed and written again, its numbers might be others.
    named = json.dumps(key, ensure_ascii=False)
    click.echo(f'{{"key": {named}, "value": {answer.text}, {json.dumps(about, ensure_ascii=False)[1:]}')


@click.command(
    name="status",
    help=with_exit_codes(
        """Shows every copy of every node: where it is, where the topic ends, and how far apart that is.

        \b
        qtopic status
        qtopic status --url http://127.0.0.1:8080
        qtopic status --json
        """
    ),
)
@URL
@DATA
@JSON
def status_command(urls: tuple[str, ...], data: Path | None, as_json: bool) -> None:
    with _client(urls, data) as client:
        statuses = list(client.statuses())
    if as_json:
        click.echo(json.dumps([{"url": url, "status": status} for url, status in statuses]))
    else:
        _print_statuses(statuses)
    if all(status is None for _, status in statuses):
        fail(
            UNREACHABLE,
            f"no node answers ({', '.join(url for url, _ in statuses)}): start them with `qtopic run`",
        )


def _client(urls: tuple[str, ...], data: Path | None) -> NodeClient:
    for url in urls:
        if not url.startswith(("http://", "https://")):
            raise click.UsageError(f"{url} is not an address; it begins with http:// or https://")
    return NodeClient(urls or [node["url"] for node in described_run(data)["nodes"]])


def _print_statuses(statuses: list[tuple[str, dict[str, Any] | None]]) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("NODE", "PARTITION", "ROLE", "POSITION", "END", "LAG", "PROGRESS"):
        table.add_column(name, justify="right" if name in ("PARTITION", "POSITION", "END", "LAG") else "left")
    for url, status in statuses:
        if status is None:
            table.add_row(url, "", "", "", "", "", "does not answer")
            continue
        for replica in status["partitions"]:
            position, end = replica["position"], replica["end"]
            table.add_row(
                str(status.get("name", url)),
                str(replica["partition"]),
                replica["role"],
                _known(position),
                _known(end),
                _known(replica["lagRecords"]),
                _progress(replica),
            )
    Console().print(table)


def _progress(replica: dict[str, Any]) -> str:
    if replica["failed"]:
        return f"failed: {replica['failed']}"
    rate, remaining = replica["recordsPerSecond"], replica["remainingSeconds"]
    said = f"{replica['phase']} {100 * replica['progress']:.0f} %"
    if replica["complete"] or remaining is None:
        return said
    return f"{said}, {rate:,.0f} records/s, {remaining:.0f} s left"


def _known(number: int | None) -> str:
    return "?" if number is None or number < 0 else str(number)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None else None


def _or_unreachable(ask: Callable[[], httpx.Response]) -> httpx.Response:
    try:
        return ask()
    except Unreachable as e:
        fail(UNREACHABLE, f"{e}: start them with `qtopic run`, or name a node with --url")


def _refused(answer: httpx.Response, as_json: bool) -> NoReturn:
    """The node's own words, and the exit code that they mean."""
    try:
        problem = answer.json()
        reason, said = problem["reason"], f"{problem['detail']}: {problem['advice']}"
    except (ValueError, KeyError, TypeError):
        problem, reason, said = {}, "", f"the node answered {answer.status_code}"
    if as_json and problem:
        click.echo(json.dumps(problem))
    if reason == _KEY_NOT_FOUND:
        fail(NOT_FOUND, said)
    if answer.status_code in _RETRY_STATUSES:
        fail(NOT_NOW, said)
    fail(INVALID if 400 <= answer.status_code < 500 else BROKEN, said)
