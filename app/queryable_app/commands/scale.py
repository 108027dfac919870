"""`qtopic scale` and `qtopic standby`: write the desired scale to the run's data directory, and show its progress."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console

from queryable_app.client.exceptions import QueryableTopicError
from queryable_app.client.transport import TlsFiles
from queryable_app.commands.common import (
    BROKEN,
    DATA,
    INVALID,
    JSON,
    NOT_NOW,
    UNREACHABLE,
    fail,
    run_directory,
    with_exit_codes,
)
from queryable_app.commands.view import View
from queryable_app.local import data_directory
from queryable_app.local.desired_scale import DESIRED_SCALE_FILE, DesiredScale
from queryable_app.local.progress import Progress

_POLL_SECONDS: Final = 0.3
_STATUS_SECONDS: Final = 1.0
_STATUS_TIMEOUT_MS: Final = 2_000
_INTERRUPTED: Final = 130  # a shell's exit code for Ctrl-C

_NO_WAIT: Final = click.option("--no-wait", is_flag=True, help="Return at once; the change goes on.")


@click.command(
    name="scale",
    short_help="Change the number of nodes of a run.",
    help=with_exit_codes(
        """Change how many NODES a `qtopic run` has, while it answers.

        A new node builds its replicas before old ones are removed, and a node is stopped only once it hosts none: no read
        fails. The command waits until the change is complete; after Ctrl-C the change goes on. It lasts until the run
        ends: the next run starts with --nodes or spec.replicas again.

        \b
        qtopic scale 5
        qtopic scale 2 --data ./data
        qtopic scale 5 --no-wait --json
        """
    ),
)
@click.argument("nodes", type=int)
@DATA
@_NO_WAIT
@JSON
def scale_command(nodes: int, data: Path | None, no_wait: bool, as_json: bool) -> None:
    directory = run_directory(data)
    _apply(directory, replace(_newest_desired(directory), nodes=nodes), no_wait, as_json)


@click.command(
    name="standby",
    short_help="Change the number of standby replicas of a run.",
    help=with_exit_codes(
        """Change how many STANDBY replicas each partition has, besides the active one, while the run answers.

        A standby replica is on another node, and answers at once if the node of the active replica dies. A replica that
        is too many is removed only when the others are caught up. The command waits until the change is complete; after
        Ctrl-C the change goes on. It lasts until the run ends: the next run starts with spec.standbyReplicas again.

        \b
        qtopic standby 1
        qtopic standby 0 --data ./data
        """
    ),
)
@click.argument("standby", type=int)
@DATA
@_NO_WAIT
@JSON
def standby_command(standby: int, data: Path | None, no_wait: bool, as_json: bool) -> None:
    directory = run_directory(data)
    _apply(directory, replace(_newest_desired(directory), standby=standby), no_wait, as_json)


def _apply(directory: Path, desired: DesiredScale, no_wait: bool, as_json: bool) -> None:
    if refusal := desired.refusal():
        fail(INVALID, refusal)
    file = directory / DESIRED_SCALE_FILE
    try:
        data_directory.write_file(file, desired.to_json())
    except OSError as e:
        fail(BROKEN, f"{file} cannot be written: {e.strerror}")
    if not no_wait:
        try:
            _wait(directory, desired, Progress(Console(stderr=as_json)))
        except KeyboardInterrupt:
            click.echo("The change goes on; the same command waits for it again.", err=True)
            sys.exit(_INTERRUPTED)
    if as_json:
        click.echo(json.dumps(_description(directory)["placement"]))
    elif no_wait:
        click.echo(f"Requested: {desired}.")


def _wait(directory: Path, desired: DesiredScale, progress: Progress) -> None:
    with progress.waiting(f"Waiting for {desired}") as show:
        status_at, replicas = 0.0, ""
        while True:
            run = _description(directory)
            placement = run["placement"]
            if (newer := _newest_desired(directory)) != desired:
                fail(NOT_NOW, f"another command has since requested {newer}")
            if DesiredScale.from_json(placement) == desired:
                if placement["settled"]:
                    break
                if time.monotonic() - status_at > _STATUS_SECONDS:
                    status_at, replicas = time.monotonic(), change_progress(run)
                left = f"{placement['toBuild']} replicas to build, {placement['toLetGo']} to remove"
                show(f"Waiting for {desired}: {left}{replicas}")
            time.sleep(_POLL_SECONDS)
    progress.say(f"Settled: {desired}, placement {placement['epoch']}")


def change_progress(run: Mapping[str, Any]) -> str:
    """Return what the nodes report of a change: failed replicas, and the progress of those that hydrate."""
    files = TlsFiles(ca=run.get("ca"))
    with View([node["url"] for node in run["nodes"]], files) as view:
        try:
            statuses = view.statuses(_STATUS_TIMEOUT_MS).values()
        except QueryableTopicError:  # the caller has no token for the status, and needs none to scale
            return ""
    replicas = [replica for status in statuses if status for replica in status["partitions"]]
    parts = [
        f"partition {replica['partition']} has failed: {replica['failed']}"
        for replica in replicas
        if replica["failed"]
    ]
    if hydrating := [replica for replica in replicas if replica["role"] == "hydrating"]:
        percent = 100 * sum(replica["progress"] for replica in hydrating) / len(hydrating)
        rate = sum(replica["recordsPerSecond"] for replica in hydrating)
        parts.append(f"{percent:.0f} % at {rate:,.0f} records/s")
    return "".join(f"; {part}" for part in parts)


def _description(directory: Path) -> Mapping[str, Any]:
    run = data_directory.run_description(directory)
    if run is None:
        fail(
            UNREACHABLE,
            f"the run with the data directory {directory} has ended: "
            f"start it again with `qtopic run --data {directory}`",
        )
    return run


def _newest_desired(directory: Path) -> DesiredScale:
    """Return the scale that was requested last, or the one that the run follows."""
    try:
        return DesiredScale.from_json(json.loads((directory / DESIRED_SCALE_FILE).read_text()))
    except (OSError, ValueError, KeyError, TypeError):  # no request yet, or a file written by hand
        return DesiredScale.from_json(_description(directory)["placement"])
