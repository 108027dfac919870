"""Test `qtopic status` beside real nodes."""

from __future__ import annotations

from pathlib import Path

import httpx
from click.testing import CliRunner

from queryable_app.commands.status import status_command
from queryable_app.contract import NODE_HEADER, REKEY_PATH
from queryable_app.platform.clock import monotonic_ms
from queryable_app.serve.store.rekeyed_replica import RekeyedReplica
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


def test_rekeyed_view_is_measured_in_its_source_topic(tmp_path: Path) -> None:
    """Position and end of a view with groupBy are of the source topic, late records have a column, and the job has a line; the
    metrics say the same."""
    aggregate = {"groupBy": ["page"], "window": {"size": "1m"}, "columns": [{"name": "n", "op": "count"}]}
    view = {"kind": "aggregate", "aggregate": aggregate}
    token = tmp_path / "token"
    token.write_text("of-the-nodes")
    settings = {"group_key_format": "string", "internal_token_path": str(token)}
    with served(tmp_path, partitions=1, view=view, settings=settings) as node:
        replica = node.node.replicas.by_partition[0]
        assert isinstance(replica, RekeyedReplica)
        node.on_loop(lambda: replica.note_source_ends(monotonic_ms(), (5,)))
        job = {"state": "streaming", "detail": "3 rows since its start", "run": 7}
        reported = httpx.put(f"{node.url}{REKEY_PATH}", json=job, headers={NODE_HEADER: "of-the-nodes"})
        assert reported.status_code == 200, reported.text
        head, row, _, line = lines_of(node.url)
        metrics = httpx.get(f"{node.url}/metrics").text.splitlines()

    assert head.split()[-6:] == ["ROLE", "POSITION", "END", "LAG", "LATE", "PROGRESS"]
    assert row.split()[3:7] == ["0", "5", "5", "0"]
    assert line == f"Rekey job: streaming, 3 rows since its start; internal topic {node.node.spec.topic}"
    assert {
        'qt_position{partition="0"} 0.0',
        'qt_log_end{partition="0"} 5.0',
        "qt_rekey_streaming 1.0",
    } <= set(metrics)
