"""Test reads of entries from Python, and with `qtopic entries`, on real nodes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner, Result

from queryable_app.client import AsyncQueryableTopic, InvalidRequest, NoSuchResource, QueryableTopic, Row
from queryable_app.commands.group import qtopic as commands
from queryable_app.wire.partitioners import partition_for
from tests.support.entries import Record, row_of, view
from tests.support.served import Served, served

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
NOON_MS = 1_795_348_800_000
MINUTE = 60_000
KEYS = ["", ".", "a/b", "é"]
TIMES = [NOON_MS + minute * MINUTE for minute in range(10)]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Run a node with ten entries of each key, in two partitions."""
    with served(tmp_path_factory.mktemp("entries"), view=view()) as running:
        for partition in range(2):
            records = [
                Record(key.encode(), time, b'{"n":%d,"s":"x,%d"}' % (n, n))
                for n, time in enumerate(TIMES)
                for key in KEYS
                if partition_for(key.encode(), "murmur2", 2) == partition
            ]
            running.put_slice(*(row_of(n, each) for n, each in enumerate(records)), partition=partition)
        yield running


@pytest.fixture(scope="module")
def readings(node: Served) -> Iterator[QueryableTopic]:
    with QueryableTopic(node.url) as client:
        yield client


def shown(row: Row) -> tuple[object, int | None, int]:
    return row.key, row.time_ms, row.value["n"]


@pytest.mark.parametrize("key", KEYS)
def test_entries_of_a_key(readings: QueryableTopic, key: str) -> None:
    """The entries of any key are read in order, in pages of any size, between times of any form."""
    expected = [(key, time, n) for n, time in enumerate(TIMES)]
    assert [shown(row) for row in readings.entries(key, page_rows=4)] == expected
    some = readings.entries(key, NOON + timedelta(minutes=2), "2026-11-22T12:05Z", order="desc")
    assert [shown(row) for row in some] == expected[4:1:-1]
    matching = readings.entries(key, TIMES[1], where="n > 3", fields="n", limit=2)
    assert [(row.time_ms, row.value) for row in matching] == [(TIMES[4], {"n": 4}), (TIMES[5], {"n": 5})]


def test_entries_of_all_keys(readings: QueryableTopic) -> None:
    """Without a key the entries of all keys come by key and time; bounds of time need a key."""
    expected = [(key, time, n) for key in sorted(KEYS, key=str.encode) for n, time in enumerate(TIMES)]
    assert [shown(row) for row in readings.entries(page_rows=7)] == expected
    with pytest.raises(InvalidRequest, match="key: "):
        readings.entries(None, NOON)


def test_a_cursor_goes_on_in_another_iterator(readings: QueryableTopic) -> None:
    """An iterator continues where the cursor of another one says."""
    first = readings.entries("é", page_rows=3, limit=3)
    assert len(list(first)) == 3
    rest = readings.entries("é", cursor=first.cursor)
    assert [row.time_ms for row in rest] == TIMES[3:]


def test_asyncio_has_the_same_reads(node: Served) -> None:
    """The client for asyncio iterates over entries."""

    async def read() -> list[Row]:
        async with AsyncQueryableTopic(node.url) as readings:
            return [row async for row in readings.entries("a/b", page_rows=3, order="desc")]

    assert [row.time_ms for row in asyncio.run(read())] == TIMES[::-1]


def test_wrong_arguments_are_refused_by_name(readings: QueryableTopic) -> None:
    """What is no time raises InvalidRequest, and a read of another view NoSuchResource."""
    with pytest.raises(InvalidRequest, match="start: "):
        readings.entries("a", "yesterday")
    with pytest.raises(InvalidRequest, match="to"):
        list(readings.entries("a", TIMES[1], TIMES[0]))
    with pytest.raises(NoSuchResource, match="entries"):
        readings.get("a")


def qtopic(*arguments: str) -> Result:
    return CliRunner().invoke(commands, arguments)


def test_command_prints_a_table(node: Served) -> None:
    """`qtopic entries` prints a row for each entry, with its time and a column for each field."""
    result = qtopic("entries", "é", "--url", node.url, "--from", "2026-11-22T12:08", "--to", str(TIMES[9]))
    heads, *lines = [line.split() for line in result.stdout.splitlines()]
    assert heads == ["KEY", "TIME", "n", "s"]
    assert lines == [["é", "2026-11-22T12:08:00.000Z", "8", "x,8"]]


def test_command_prints_json_and_csv(node: Served) -> None:
    """With --json it prints the nodes' own items, and with --csv the key, the time and the fields."""
    options = ("entries", "a/b", "--url", node.url, "--order", "desc", "--limit", "2")
    lines = qtopic(*options, "--json").stdout.splitlines()
    assert [json.loads(line)["time"] for line in lines] == [
        "2026-11-22T12:09:00.000Z",
        "2026-11-22T12:08:00.000Z",
    ]
    assert qtopic(*options, "--csv", "--fields", "s,n").stdout.splitlines() == [
        "key,time,s,n",
        'a/b,2026-11-22T12:09:00.000Z,"x,9",9',
        'a/b,2026-11-22T12:08:00.000Z,"x,8",8',
    ]
    every = qtopic("entries", "--url", node.url, "--all", "--json")
    assert len(every.stdout.splitlines()) == 40


def test_command_names_a_wrong_time(node: Served) -> None:
    """A wrong time ends the command with the code for requests that are not valid."""
    result = qtopic("entries", "a", "--url", node.url, "--from", "soon")
    assert (result.exit_code, result.output[:7]) == (2, "start: ")
