"""Test reads of windows from Python, and with `qtopic windows` and `qtopic top`, on real nodes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from click.testing import CliRunner, Result

from queryable_app.client import (
    AsyncQueryableTopic,
    InvalidRequest,
    NoSuchResource,
    QueryableTopic,
    Row,
    Window,
)
from queryable_app.client.windows import Time
from queryable_app.commands.group import qtopic as commands
from queryable_app.wire.partitioners import partition_for
from tests.support.served import Served, served
from tests.support.windows import Record, row_of, view

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
NOON_MS = 1_795_348_800_000
MINUTE = 60_000
KEYS = ["", "a/b", "[b]", "é"]
STARTS = [NOON_MS + minute * MINUTE for minute in range(11)]
VALUES = {("a/b", STARTS[1]): 5, ("é", STARTS[1]): 7, ("", STARTS[2]): 9}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Run a node with eleven windows of each key, in two partitions."""
    with served(tmp_path_factory.mktemp("windows"), view=view(size="1m", grace="10s")) as running:
        for partition in range(2):
            records = [
                Record(key.encode(), start, VALUES.get((key, start)))
                for start in STARTS
                for key in KEYS
                if partition_for(key.encode(), "murmur2", 2) == partition
            ]
            running.put_slice(*(row_of(n, each) for n, each in enumerate(records)), partition=partition)
        yield running


@pytest.fixture(scope="module")
def views(node: Served) -> Iterator[QueryableTopic]:
    with QueryableTopic(node.url) as client:
        yield client


def shown(row: Row) -> tuple[object, int]:
    assert row.window is not None
    return row.key, row.window.start_ms


@pytest.mark.parametrize("key", KEYS)
def test_windows_of_a_key(views: QueryableTopic, key: str) -> None:
    """The windows of any key are read in order, in pages of any size, and each by its start."""
    rows = list(views.windows(key, page_rows=4))

    assert [shown(row) for row in rows] == [(key, start) for start in STARTS]
    assert rows[0].window == Window(NOON_MS, NOON_MS + MINUTE, True)
    assert rows[0].value["n"] == 1
    one = views.window(key, NOON)
    assert one is not None
    assert (one.key, one.window, one.value) == (rows[0].key, rows[0].window, rows[0].value)
    assert views.window(key, NOON_MS + 1) is None


@pytest.mark.parametrize(
    "start",
    [
        NOON + timedelta(minutes=2),
        (NOON + timedelta(minutes=2)).replace(tzinfo=None),
        (NOON + timedelta(minutes=2)).astimezone(timezone(timedelta(hours=-5))),
        STARTS[2],
        "2026-11-22T12:02",
        "2026-11-22T13:02:00+01:00",
    ],
)
def test_ways_to_give_a_time(views: QueryableTopic, start: Time) -> None:
    """A time is a datetime, milliseconds or ISO 8601; without a zone it is UTC."""
    rows = list(views.windows("é", start, STARTS[4]))
    assert [shown(row) for row in rows] == [("é", STARTS[2]), ("é", STARTS[3])]


def test_windows_of_all_keys(views: QueryableTopic) -> None:
    """The windows of all keys come by key and start, in both orders."""
    expected = [(key, start) for key in sorted(KEYS, key=str.encode) for start in STARTS[3:5]]
    bounds = (STARTS[3], STARTS[5])

    assert [shown(row) for row in views.windows(None, *bounds, page_rows=3)] == expected
    assert [shown(row) for row in views.windows(None, *bounds, order="desc", limit=3)] == expected[::-1][:3]


def test_top_windows(views: QueryableTopic) -> None:
    """The windows with the greatest or the least results of a column come from all keys and partitions, within a time."""
    best = [(("", STARTS[2]), 9), (("é", STARTS[1]), 7), (("a/b", STARTS[1]), 5)]

    def top(*arguments: Any, **options: Any) -> list[tuple[tuple[object, int], Any]]:
        return [(shown(row), row.value["total"]) for row in views.top(*arguments, **options)]

    assert top("total") == best
    assert top("total", 2) == best[:2]
    assert top("total", 2, order="asc") == best[:0:-1]
    assert top("total", start=STARTS[1], stop="2026-11-22T12:02") == best[1:]
    with pytest.raises(InvalidRequest, match="by: "):
        views.top("nope")
    with pytest.raises(InvalidRequest, match="stop: "):
        views.top("total", stop="soon")


def test_asyncio_has_the_same_reads(node: Served) -> None:
    """The client for asyncio iterates over windows, and reads one."""

    async def read() -> tuple[list[Row], Row | None]:
        async with AsyncQueryableTopic(node.url) as views:
            assert [shown(row) for row in await views.top("total", 1)] == [("", STARTS[2])]
            return [row async for row in views.windows("a/b", page_rows=5)], await views.window("a/b", NOON)

    rows, one = asyncio.run(read())
    assert [shown(row) for row in rows] == [("a/b", start) for start in STARTS]
    assert one is not None
    assert one.window == rows[0].window


def test_wrong_time_is_refused_before_it_is_sent(views: QueryableTopic) -> None:
    """What is no time raises InvalidRequest, which names the argument."""
    with pytest.raises(InvalidRequest, match="start: "):
        list(views.windows("a", "yesterday"))
    with pytest.raises(InvalidRequest, match="stop: "):
        list(views.windows("a", None, True))
    with pytest.raises(InvalidRequest, match="start: "):
        views.window("a", "")


def test_reads_of_keys_name_the_reads_of_windows(views: QueryableTopic) -> None:
    """A read that the view does not have raises NoSuchResource, which names what it has."""
    for read in (
        lambda: views.get("a"),
        lambda: views.multi_get(["a"]),
        views.count,
        lambda: list(views.scan()),
    ):
        with pytest.raises(NoSuchResource, match="windows"):
            read()


def qtopic(*arguments: str) -> Result:
    return CliRunner().invoke(commands, arguments)


def test_command_prints_a_table(node: Served) -> None:
    """`qtopic windows` prints a row for each window, with a column for each aggregate."""
    result = qtopic("windows", "[b]", "--url", node.url, "--from", "2026-11-22T12:08", "--limit", "2")

    heads, *lines = [line.split() for line in result.stdout.splitlines()]
    assert heads == ["KEY", "START", "END", "FINAL", "n", "total", "first", "last"]
    assert lines == [
        ["[b]", "2026-11-22T12:08:00.000Z", "2026-11-22T12:09:00.000Z", "yes", "1", "null", "null", "null"],
        ["[b]", "2026-11-22T12:09:00.000Z", "2026-11-22T12:10:00.000Z", "no", "1", "null", "null", "null"],
    ]


def test_command_prints_json_lines(node: Served) -> None:
    """With --json it prints the nodes' own items, one on each line."""
    result = qtopic("windows", "--url", node.url, "--desc", "--limit", "1", "--json")

    (line,) = result.stdout.splitlines()
    assert (result.exit_code, json.loads(line)["window"]["start"]) == (0, "2026-11-22T12:10:00.000Z")


def test_command_prints_the_best_windows(node: Served) -> None:
    """`qtopic top` prints the best window first, as a table or as the node's own answer."""
    result = qtopic("top", "total", "--url", node.url, "-k", "2")
    heads, *lines = [line.split() for line in result.stdout.splitlines()]
    assert heads == ["KEY", "START", "END", "FINAL", "n", "total", "first", "last"]
    assert [line[-3] for line in lines] == ["9", "7"]

    answered = qtopic("top", "total", "--url", node.url, "--asc", "--from", str(STARTS[1]), "--json")
    assert [item["value"]["total"] for item in json.loads(answered.output)["items"]] == [5, 7, 9]

    wrong = qtopic("top", "nope", "--url", node.url)
    assert (wrong.exit_code, wrong.output[:4]) == (2, "by: ")


def test_command_names_a_wrong_time(node: Served) -> None:
    """A wrong time ends the command with the code for requests that are not valid."""
    result = qtopic("windows", "a", "--url", node.url, "--from", "soon")
    assert (result.exit_code, result.output[:7]) == (2, "start: ")
