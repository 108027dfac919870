"""`qtopic scale` and `qtopic standby`: leave a wish in the run's directory, and show how far it is."""

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
from queryable_app.commands.node_client import NodeClient
from queryable_app.local import data_directory
from queryable_app.local.desired_scale import DESIRED_SCALE_FILE, DesiredScale
from queryable_app.local.progress import Progress

_POLL_SECONDS: Final = 0.3
_STATUS_SECONDS: Final = 1.0
_INTERRUPTED: Final = 130  # as a shell says it

_NO_WAIT: Final = click.option("--no-wait", is_flag=True, help="Returns at once; the change goes on.")


@click.command(
    name="scale",
    help=with_exit_codes(
        """Changes how many NODES a `qtopic run` has, while it answers.

        New nodes build their copies before old copies go, and a node that is too many gives its copies away before it is
        stopped: no read fails. The command waits until all is in its place; Ctrl-C leaves the change going on. It
        lasts until the run ends, which begins again with --nodes or spec.replicas.

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
    _apply(directory, replace(_wish_of(directory), nodes=nodes), no_wait, as_json)


@click.command(
    name="standby",
    help=with_exit_codes(
        """Changes how many STANDBY copies each partition has, besides the active one, while the run answers.

        A standby copy is on another node, and answers at once when the node of the active one dies. Copies that are too
        many go only when the others are caught up. The command waits until all is in its place; Ctrl-C leaves the
        change going on. It lasts until the run ends, which begins again with spec.standbyReplicas.

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
    _apply(directory, replace(_wish_of(directory), standby=standby), no_wait, as_json)


def _apply(directory: Path, wish: DesiredScale, no_wait: bool, as_json: bool) -> None:
    if refusal := wish.refusal():
        fail(INVALID, refusal)
    try:
        data_directory.write_file(directory / DESIRED_SCALE_FILE, wish.to_json())
    except OSError as e:
        fail(BROKEN, f"{directory / DESIRED_SCALE_FILE} cannot be written: {e.strerror}")
    if not no_wait:
        try:
            _wait(directory, wish, Progress(Console(stderr=as_json)))
        except KeyboardInterrupt:
            click.echo("The change goes on; the same command waits for it again.", err=True)
            sys.exit(_INTERRUPTED)
    if as_json:
        click.echo(json.dumps(_described(directory)["placement"]))
    elif no_wait:
        click.echo(f"Asked for {_words(wish)}.")


def _wait(directory: Path, wish: DesiredScale, progress: Progress) -> None:
    with progress.waiting(f"Waiting for {_words(wish)}") as show:
        looked, held_up = 0.0, ""
        while True:
            run = _described(directory)
            placement = run["placement"]
            if (newer := _wish_of(directory)) != wish:
                fail(NOT_NOW, f"someone has asked for {_words(newer)} meanwhile")
            if _wish_in(placement) == wish:
                if placement["settled"]:
                    break
                if time.monotonic() - looked > _STATUS_SECONDS:
                    looked, held_up = time.monotonic(), change_progress(run)
                show(f"Waiting for {_words(wish)}: {_left(placement)}{held_up}")
            time.sleep(_POLL_SECONDS)
    progress.say(f"Settled: {_words(wish)}, placement {placement['epoch']}")


def _left(placement: Mapping[str, Any]) -> str:
    return f"{placement['toBuild']} copies to build, {placement['toLetGo']} to let go"


def change_progress(run: Mapping[str, Any]) -> str:
    """What the change waits for, as the nodes say: copies that are being built, and those that have failed."""
    with NodeClient([node["url"] for node in run["nodes"]], timeout_seconds=2) as client:
        replicas = [
            replica
            for _, status in client.statuses()
            for replica in (status or {"partitions": []})["partitions"]
        ]
    said = [
        f"partition {replica['partition']} has failed: {replica['failed']}"
        for replica in replicas
        if replica["failed"]
    ]
    if building := [replica for replica in replicas if replica["role"] == "hydrating"]:
        done = 100 * sum(replica["progress"] for replica in building) / len(building)
        said.append(
            f"{done:.0f} % at {sum(replica['recordsPerSecond'] for replica in building):,.0f} records/s"
        )
    return "".join(f"; {each}" for each in said)


def _described(directory: Path) -> Mapping[str, Any]:
    run = data_directory.run_description(directory)
    if run is None:
        fail(
            UNREACHABLE,
            f"the run over {directory} has ended: start it again with `qtopic run --data {directory}`",
        )
    return run


def _wish_of(directory: Path) -> DesiredScale:
    """What the run follows now, or was asked for last."""
    try:
        return DesiredScale.from_json(json.loads((directory / DESIRED_SCALE_FILE).read_text()))
    except (OSError, ValueError, KeyError, TypeError):  # nobody has asked yet, or by hand
        return _wish_in(_described(directory)["placement"])


def _wish_in(placement: Mapping[str, Any]) -> DesiredScale:
    return DesiredScale.from_json(placement)


def _words(wish: DesiredScale) -> str:
    nodes = "1 node" if wish.nodes == 1 else f"{wish.nodes} nodes"
    standby = "1 standby copy" if wish.standby == 1 else f"{wish.standby} standby copies"
    return f"{nodes} and {standby} of each partition"
