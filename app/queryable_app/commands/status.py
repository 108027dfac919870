"""`qtopic status`: show the replicas of each node."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table

from queryable_app.client.exceptions import QueryableTopicError
from queryable_app.commands.common import DATA, JSON, UNREACHABLE, fail, with_exit_codes
from queryable_app.commands.get import fail_read
from queryable_app.commands.node_options import URL
from queryable_app.commands.view import view_at

_NUMBERS: Final = ("PARTITION", "POSITION", "END", "LAG", "LATE")


@click.command(
    name="status",
    short_help="Show the position and the lag of every replica.",
    help=with_exit_codes(
        """Show every replica of every node: its position, the end offset of its partition, and its lag.

        In a view with groupBy or keyBy, position and end are sums over the partitions of the source topic, and a line
        below tells about the rekey job. In a view with windows, LATE counts the records that came too late for them.

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
    with view_at(urls, data) as view:
        try:
            statuses = view.statuses()
        except QueryableTopicError as error:
            fail_read(error, as_json)
    if as_json:
        click.echo(json.dumps([{"url": url, "status": status} for url, status in statuses.items()]))
    else:
        console = Console()
        console.print(_table(statuses))
        if job := _rekey_job(statuses):
            console.print(job, soft_wrap=True, markup=False, highlight=False)
    if all(status is None for status in statuses.values()):
        fail(UNREACHABLE, f"no node answers ({', '.join(statuses)}): start them with `qtopic run`")


def _table(statuses: Mapping[str, dict[str, Any] | None]) -> Table:
    """Return a row for each replica. The pod of a node is shown if a pod has several."""
    with_pods = any(
        status and status.get("pod", status.get("name")) != status.get("name") for status in statuses.values()
    )
    replicas = [each for status in statuses.values() if status for each in status["partitions"]]
    counts_late = any("lateRecords" in replica for replica in replicas)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in (
        *(["POD"] if with_pods else []),
        "NODE",
        "PARTITION",
        "ROLE",
        "POSITION",
        "END",
        "LAG",
        *(["LATE"] if counts_late else []),
        "PROGRESS",
    ):
        table.add_column(name, justify="right" if name in _NUMBERS else "left")
    for url, status in statuses.items():
        if status is None:
            empty = ["", "", "", "", "", *([""] if counts_late else [])]
            table.add_row(*([""] if with_pods else []), url, *empty, "does not answer")
            continue
        for replica in status["partitions"]:
            table.add_row(
                *([str(status["pod"])] if with_pods else []),
                str(status.get("name", url)),
                str(replica["partition"]),
                replica["role"],
                _known(sum(replica["sources"]) if "sources" in replica else replica["position"]),
                _known(replica["end"]),
                _known(replica["lagRecords"]),
                *([_known(replica.get("lateRecords"))] if counts_late else []),
                _progress(replica),
            )
    return table


def _rekey_job(statuses: Mapping[str, dict[str, Any] | None]) -> str:
    """Return a line about the rekey job, as the node says to which it has reported last. Empty: the view has none."""
    jobs = [status["rekey"] for status in statuses.values() if status and "rekey" in status]
    if not jobs:
        return ""
    job = min(jobs, key=lambda each: math.inf if each["reportedMs"] is None else each["reportedMs"])
    detail = f", {job['detail']}" if job["detail"] else ""
    return f"\nRekey job: {job['state']}{detail}; internal topic {job['internalTopic']}"


def _progress(replica: Mapping[str, Any]) -> str:
    if replica["failed"]:
        return f"failed: {replica['failed']}"
    rate, remaining = replica["recordsPerSecond"], replica["remainingSeconds"]
    progress = f"{replica['phase']} {100 * replica['progress']:.0f} %"
    if replica["complete"] or remaining is None:
        return progress
    return f"{progress}, {rate:,.0f} records/s, {remaining:.0f} s left"


def _known(number: int | None) -> str:
    return "?" if number is None or number < 0 else str(number)
