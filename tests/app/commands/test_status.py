"""Test `qtopic status` beside real nodes."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from queryable_app.commands.status import status_command
from tests.support.pods import PARTITIONS, running_pods
from tests.support.served import served


def lines_of(*urls: str) -> list[str]:
    options = [option for url in urls for option in ("--url", url)]
    done = CliRunner().invoke(status_command, options, env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    return done.stdout.splitlines()


def test_workers_are_shown_with_their_pod(tmp_path: Path) -> None:
    """Each replica's row begins with its pod and its node, if a pod has several nodes."""
    with running_pods(tmp_path) as (pod,):
        head, *rows = lines_of(*(worker.advertised_url for worker in pod.workers))

    assert head.split()[:3] == ["POD", "NODE", "PARTITION"]
    assert len(rows) == PARTITIONS
    assert {tuple(row.split()[:2]) for row in rows} == {
        ("users-r1-0", "users-r1-0.0"),
        ("users-r1-0", "users-r1-0.1"),
    }


def test_single_nodes_have_no_column_for_pods(tmp_path: Path) -> None:
    """The table of nodes that are their own pods is as it was."""
    with served(tmp_path) as node:
        head, *_ = lines_of(f"http://127.0.0.1:{node.port}")

    assert head.split()[:2] == ["NODE", "PARTITION"]
