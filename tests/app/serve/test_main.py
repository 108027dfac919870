"""Test `python -m queryable_app.serve` as a supervisor runs it, without Kafka and without ingest."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from queryable_app.contract import NodeSettings
from queryable_app.serve.base.data_directory_lock import locked_directory
from tests.support.node import node_settings, open_node, put, slice_payload
from tests.support.waiting import eventually


def _settings(directory: Path) -> NodeSettings:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    return node_settings(directory, 2, settings={"http_host": "127.0.0.1", "http_port": port})


@contextmanager
def _serving(settings: NodeSettings) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a process; return it and its address once it answers."""
    with _started(settings) as process:
        yield process, _answering(settings, process)


def _answering(settings: NodeSettings, process: subprocess.Popen[str]) -> str:
    """Return the address once the process answers."""
    url = f"http://127.0.0.1:{settings.http_port}"

    def answers() -> bool:
        try:
            httpx.get(f"{url}/livez")
            return True
        except httpx.TransportError:
            assert process.poll() is None, process.stderr and process.stderr.read()
            return False

    eventually("the port answers", answers, 20)
    return url


@contextmanager
def _started(settings: NodeSettings) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "queryable_app.serve"]
    environment = {**os.environ, **settings.to_env()}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _store_row(directory: Path, value: bytes) -> None:
    """Store the key `k` in both partitions of a node, and close its stores."""
    node = open_node(directory, 2)
    for partition in range(2):
        node.replicas.by_partition[partition].note_end_offset(1, 1)
        node.slices.apply(slice_payload(put(0, b"k", value), partition=partition))
    node.replicas.close()


def _events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_rows_on_disk_are_answered_without_kafka_and_ingest(tmp_path: Path) -> None:
    """A node answers from its stores as soon as its port is open; SIGTERM ends it cleanly, with one log line an event."""
    _store_row(tmp_path, b'{"a":1}')

    with _serving(_settings(tmp_path)) as (process, url):
        answer = httpx.get(f"{url}/v1/keys/k")
        assert (answer.status_code, answer.json()) == (200, {"a": 1})
        process.send_signal(signal.SIGTERM)
        _, logged = process.communicate(timeout=20)

    assert process.returncode == 0
    names = [event["event"] for event in _events(logged)]
    assert names[0] == "starting"
    assert names[-1] == "stopped"
    assert {"serving", "ready"} <= set(names)


def test_killed_node_starts_again(tmp_path: Path) -> None:
    """The sockets and locks that kill -9 leaves do not prevent the next start."""
    settings = _settings(tmp_path)
    for _ in range(2):
        with _serving(settings) as (process, _url):
            process.kill()


def test_node_waits_for_a_predecessor_that_is_ending(tmp_path: Path) -> None:
    """After a pod was deleted by force, its successor waits for the old process, logs why, and then has all replicas."""
    before = _settings(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as free:
        after = replace(before, http_port=free.getsockname()[1], run_dir=str(tmp_path / "another-run"))
    with _serving(before) as (ending, _), _started(after) as process:
        assert process.stderr is not None
        logged = [json.loads(process.stderr.readline()) for _ in range(2)]
        assert [line["event"] for line in logged] == ["starting", "waiting"]
        assert logged[1]["path"] == before.data_dir

        ending.kill()
        status = httpx.get(f"{_answering(after, process)}/v1/status").json()
        assert [replica.get("failed") for replica in status["partitions"]] == [None, None]


def test_data_directory_in_use_is_refused(tmp_path: Path) -> None:
    """A node ends with a message that names the directory and what to do."""
    with (
        locked_directory(tmp_path),
        pytest.raises(OSError, match=f"{tmp_path} is in use by another process; stop it"),
        locked_directory(tmp_path, wait_seconds=0),
    ):
        raise AssertionError("not reached")


def test_port_in_use_is_logged_in_one_line(tmp_path: Path) -> None:
    """A node does not start, and names the port."""
    settings = _settings(tmp_path)
    with socket.create_server(("127.0.0.1", settings.http_port)), _started(settings) as process:
        _, logged = process.communicate(timeout=20)

    assert process.returncode == 1
    last = _events(logged)[-1]
    assert last["event"] == "failed"
    assert str(settings.http_port) in last["reason"]


def test_missing_variable_is_named(tmp_path: Path) -> None:
    """A node without a setting names the missing variable."""
    environment = {k: v for k, v in _settings(tmp_path).to_env().items() if k != "QT_SPEC_PATH"}
    command = [sys.executable, "-m", "queryable_app.serve"]
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=30
    )

    assert done.returncode == 1
    assert "QT_SPEC_PATH is not set" in done.stderr


def test_damaged_store_does_not_stop_the_others(tmp_path: Path) -> None:
    """The replica with the damaged store fails, and keys of other partitions are answered."""
    _store_row(tmp_path, b"1")
    damaged = tmp_path / "data" / "tests.users.r1" / "p0000"
    (damaged / "CURRENT").write_text("garbage\n")

    reopened = open_node(tmp_path, 2)

    failed, whole = reopened.replicas.by_partition[0], reopened.replicas.by_partition[1]
    assert failed.failed is not None
    assert "is damaged" in failed.failed
    assert (whole.failed, whole.store.get(b"k") is not None) == (None, True)
    reopened.replicas.close()
