"""Test conditions, fields and probes from Python, and with `qtopic scan`, `range` and `prefix`, on a real node."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

from queryable_app.client import AsyncQueryableTopic, InvalidRequest, QueryableTopic
from queryable_app.commands.group import qtopic as commands
from queryable_app.serve.api import scans as scans_routes
from queryable_app.serve.base.look_budget import LookBudget
from tests.support.served import Served, served

VALUES = {
    f"user-{n:02}": b'{"n": %d, "big": 9007199254740993.10, "inner": {"name": "O\'Hara, \\"%d\\"", "list": [1.50]}}'
    % (n, n)
    for n in range(30)
}
TWENTIES = [f"user-{n}" for n in range(20, 30)]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("selection"), partitions=3) as running:
        for key, value in VALUES.items():
            running.put(key.encode(), value)
        running.put(b"text", b'"no object"')
        yield running


@pytest.fixture(scope="module")
def users(node: Served) -> Iterator[QueryableTopic]:
    with QueryableTopic(node.url) as client:
        yield client


def test_iterators_have_the_rows_that_match(users: QueryableTopic) -> None:
    """Scans, ranges, prefixes and counts take conditions, in any text that a URL has to encode."""
    where = "n >= 20 and inner.name != '100% & +#'"
    for rows in (
        users.scan(where=where),
        users.range("user-", where=where),
        users.prefix("user", where=where),
    ):
        assert [row.key for row in rows] == TWENTIES
    assert users.count(where=where) == len(TWENTIES)


def test_iterators_go_on_after_pages_without_rows(
    users: QueryableTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An iterator ends at the last page, not at an empty one. A limit counts the rows that match."""
    monkeypatch.setattr(scans_routes, "page_looks", lambda deadline: LookBudget(1))
    monkeypatch.setattr("queryable_app.serve.reads.scans.BATCH_ROWS", 3)
    assert [row.key for row in users.scan(where="n >= 20", page_rows=4)] == TWENTIES
    assert [row.key for row in users.scan(where="n >= 20", page_rows=4, limit=7)] == TWENTIES[:7]
    assert list(users.scan(where="n < 0")) == []


def test_fields_select_what_a_row_has(users: QueryableTopic) -> None:
    """Every read of values takes fields, as one text or one by one."""
    fields = ["n", '"inner"."list"']
    expected = {"n": 3, "inner": {"list": [1.5]}}
    row = users.get("user-03", fields=fields)
    assert row is not None
    assert row.value == expected
    assert [row.value for row in users.range("user-03", "user-04", fields=",".join(fields))] == [expected]
    (found, other, absent) = users.multi_get(["user-03", "text", "absent"], fields=fields)
    assert found is not None
    assert other is not None
    assert (found.value, other.value, absent) == (expected, {}, None)


def test_exists_reads_no_value(users: QueryableTopic) -> None:
    """A key exists or does not; a long key too."""
    assert users.exists("user-03")
    assert not users.exists("absent")
    assert not users.exists("x" * 20_000)


def test_asyncio_client_has_the_same(node: Served) -> None:
    """The client for asyncio takes conditions and fields, and probes."""

    async def read() -> tuple[list[Any], Any, bool, int]:
        async with AsyncQueryableTopic(node.url) as users:
            rows = [row.value async for row in users.scan(where="n = 3", fields="n")]
            (row,) = await users.multi_get(["user-03"], fields="n")
            return rows, row and row.value, await users.exists("user-03"), await users.count(where="n < 5")

    assert asyncio.run(read()) == ([{"n": 3}], {"n": 3}, True, 5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"where": "n ="}, "where: at character 4: a field or a value is expected, not the end"),
        ({"where": "n = '" + "x" * 70_000 + "'"}, "where: has 70006 bytes"),
        ({"where": 5}, "where: 5 is no text"),
        ({"fields": ["a", 5]}, "fields: 5 is no text"),
        (
            {"fields": "a["},
            "fields: at character 3: the index of an element, from 0, is expected, not the end",
        ),
    ],
)
def test_mistakes_name_the_option(users: QueryableTopic, options: dict[str, Any], message: str) -> None:
    """A mistake raises InvalidRequest, also one of a size that no request has."""
    with pytest.raises(InvalidRequest) as raised:
        list(users.scan(**options))
    assert raised.value.detail == message


def test_stored_bytes_have_no_fields(users: QueryableTopic) -> None:
    """The stored bytes are read whole."""
    with pytest.raises(InvalidRequest, match="fields: the stored bytes have none"):
        users.get("user-03", raw=True, fields="n")


def qtopic(*arguments: str) -> Result:
    return CliRunner().invoke(commands, arguments)


def test_command_prints_a_table(node: Served) -> None:
    """`qtopic range` prints a row for each key, with a column for each field."""
    result = qtopic("range", "--from", "user-02", "--to", "user-04", "--fields", "n,big", "--url", node.url)
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines == [
        ["KEY", "n", "big"],
        ["user-02", "2", "9007199254740993.10"],
        ["user-03", "3", "9007199254740993.10"],
    ]


def test_command_prints_json_as_nodes_write_it(node: Served) -> None:
    """With --json it prints the nodes' own items, one on each line; no number changes. `--all` has no limit."""
    result = qtopic("scan", "--where", "n in (3, 4)", "--desc", "--all", "--json", "--url", node.url)
    first, second = result.stdout.splitlines()
    assert f'"value":{VALUES["user-04"].decode()}' in first
    assert json.loads(second)["key"] == "user-03"


def test_command_prints_csv(node: Served) -> None:
    """With --csv it prints a column for each field, and an empty cell where a value has none."""
    result = qtopic(
        "prefix", "user-0", "--where", "n <= 1", "--csv", "--fields", "n,inner,x", "--url", node.url
    )
    assert result.stdout.splitlines() == [
        "key,n,inner,x",
        '''user-00,0,"{""name"": ""O'Hara, \\""0\\"""", ""list"": [1.50]}",''',
        '''user-01,1,"{""name"": ""O'Hara, \\""1\\"""", ""list"": [1.50]}",''',
    ]
    whole = qtopic("range", "--to", "u", "--csv", "--url", node.url)
    assert whole.stdout.splitlines() == ["key,value", "text,no object"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["scan", "--where", "n =="], "where: at character 4: a field or a value is expected, not '='"),
        (["scan", "--fields", "a b"], "fields: at character 3: a comma or the end is expected, not 'b'"),
        (["scan", "--all"], "a table has at most 10000 rows"),
        (["scan", "--json", "--csv"], "--json and --csv are two forms"),
    ],
)
def test_command_names_a_mistake(node: Served, arguments: list[str], message: str) -> None:
    """A mistake ends the command with the code for requests that are not valid."""
    result = qtopic(*arguments, "--url", node.url)
    assert result.exit_code == 2
    assert message in result.output
