"""The change feed of a view with windows names the window of each change, and lets clients choose by key."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from time import time_ns
from typing import Any

import pytest

from queryable_app.client import QueryableTopic
from queryable_app.wire.times import to_iso
from tests.support.served import Served, served
from tests.support.windows import Record, row_of, view

SECOND, HOUR = 1000, 3_600_000
# A whole hour, so the bounds of windows are round. No window of it is over in the next hours.
START = time_ns() // 1_000_000 // HOUR * HOUR
NDJSON = {"accept": "application/x-ndjson"}


@pytest.fixture
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Run a view of sessions that end after ten seconds, with two of `a/1` that are still apart."""
    of_view = view(sessionGap="10s", grace="1h", retention="1d") | {"changes": True}
    with served(tmp_path_factory.mktemp("node"), view=of_view) as running:
        send(running, 0, b"a/1", 0, 3)
        send(running, 1, b"a/1", 15, 4)
        send(running, 2, b"b", 15, 9)
        yield running


def send(node: Served, offset: int, key: bytes, second: int, value: int) -> None:
    node.put_slice(row_of(offset, Record(key, START + second * SECOND, value)))


def changes(node: Served, **parameters: str) -> list[dict[str, Any]]:
    """Return the changes of a page, without where they are from."""
    asked = {"from": "start", "wait-ms": "0", **parameters}
    with node.client() as client:
        answer = client.get("/v1/changes", params=asked, headers=NDJSON)
    assert answer.status_code == 200, answer.text
    lines = [json.loads(line) for line in answer.text.splitlines()[:-1]]
    shown = ("key", "window", "value", "deleted")
    return [{name: line[name] for name in shown if name in line} for line in lines]


def bounds(first: int, last: int) -> dict[str, str]:
    return {"start": to_iso(START + first * SECOND), "end": to_iso(START + last * SECOND)}


def value(total: int, last: int) -> dict[str, int]:
    return {"n": 1, "total": total, "first": last, "last": last}


def test_change_has_its_window(node: Served) -> None:
    """A change has the window's start and end, and what the window held after it."""
    assert changes(node, key="b") == [{"key": "b", "window": bounds(15, 25), "value": value(9, 9)}]


def test_window_that_became_part_of_another_is_deleted(node: Served) -> None:
    """When a record joins two sessions, the later one is deleted, and the earlier one has both."""
    send(node, 3, b"a/1", 8, 5)

    joined = changes(node, prefix="a/")[2:]

    assert joined == [
        {
            "key": "a/1",
            "window": bounds(0, 25),
            "value": {"n": 3, "total": 12, "first": 3, "last": 5},
        },
        {"key": "a/1", "window": {"start": bounds(15, 25)["start"]}, "value": None, "deleted": True},
    ]


@pytest.mark.parametrize(
    ("parameters", "keys"),
    [
        ({"key": "a/1"}, ["a/1", "a/1"]),
        ({"key": "a"}, []),
        ({"prefix": "a"}, ["a/1", "a/1"]),
        ({"where": "total > 3"}, ["a/1", "b"]),
    ],
    ids=str,
)
def test_client_chooses_windows(node: Served, parameters: dict[str, str], keys: list[str]) -> None:
    """With `key`, `prefix` and `where` a client gets the changes of these windows only."""
    assert [change["key"] for change in changes(node, **parameters)] == keys


def test_changes_have_the_named_fields(node: Served) -> None:
    """With `fields` a change has these columns of its window."""
    assert changes(node, key="b", fields="total")[0]["value"] == {"total": 9}


def test_python_client_has_the_window(node: Served) -> None:
    """A change of the Python client says when its window starts and ends."""
    with QueryableTopic(node.url) as client:
        change = next(iter(client.changes(key="b", start="start")))
    assert (change.window_start_ms, change.window_end_ms) == (START + 15 * SECOND, START + 25 * SECOND)


def test_watch_prints_the_window(node: Served) -> None:
    """`qtopic watch` prints the window between the key and the value."""
    command = [sys.executable, "-m", "queryable_app.cli", "watch", "b", "--url", node.url, "--from", "start"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        line = watching.stdout.readline()
        watching.terminate()
    assert f"  b  {bounds(15, 25)['start']}  {bounds(15, 25)['end']}  {{" in line
