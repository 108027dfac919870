"""Test reads by an index from Python, and with `qtopic index` and `qtopic top`, on a real node."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from click.testing import CliRunner, Result

from queryable_app.client import AsyncQueryableTopic, Group, InvalidRequest, QueryableTopic
from queryable_app.commands.group import qtopic as commands
from tests.support.served import Served, served

AUTHORS = ["ada", "100% & +#", "ada", "bo"]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    view = {
        "indexes": [
            {"name": "by-author", "field": "author", "type": "string"},
            {"name": "by-views", "field": "views", "type": "double"},
            {"name": "by-hot", "field": "hot", "type": "boolean"},
            {"name": "by-time", "field": "time", "type": "timestamp"},
        ]
    }
    with served(tmp_path_factory.mktemp("indexes"), partitions=3, view=view) as running:
        for n, author in enumerate(AUTHORS):
            hot = b"true" if n % 2 else b"false"
            value = b'{"author": "%b", "views": %d, "hot": %b, "time": %d}' % (
                author.encode(),
                n,
                hot,
                n * 1000,
            )
            running.put(b"a-%d" % n, value)
        yield running


@pytest.fixture(scope="module")
def articles(node: Served) -> Iterator[QueryableTopic]:
    with QueryableTopic(node.url) as client:
        yield client


@pytest.mark.parametrize(
    ("name", "bounds", "keys"),
    [
        ("by-author", {"eq": "ada"}, ["a-0", "a-2"]),
        ("by-author", {"eq": "100% & +#"}, ["a-1"]),
        ("by-author", {"start": "b"}, ["a-3"]),
        ("by-views", {"eq": 2}, ["a-2"]),
        ("by-views", {"start": 0.5, "stop": 1e300}, ["a-1", "a-2", "a-3"]),
        ("by-hot", {"eq": True}, ["a-1", "a-3"]),
        ("by-time", {"stop": datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC)}, ["a-0", "a-1"]),
    ],
)
def test_index_finds_rows_by_values_of_python(
    articles: QueryableTopic, name: str, bounds: dict[str, Any], keys: list[str]
) -> None:
    """A value is a text, a number, a bool or a datetime. An iterator reads pages of any size; a count has the same rows."""
    assert [row.key for row in articles.index(name, page_rows=1, **bounds)] == keys
    assert [row.key for row in articles.index(name, order="desc", limit=2, **bounds)] == keys[::-1][:2]
    assert articles.index_count(name, **bounds) == len(keys)


def test_top_and_conditions(articles: QueryableTopic) -> None:
    """`top` returns the rows with the greatest values, and an index takes conditions and fields."""
    assert [row.key for row in articles.top("by-views", 2)] == ["a-3", "a-2"]
    rows = list(articles.index("by-views", where="author = 'ada'", fields="views"))
    assert [row.value for row in rows] == [{"views": 0}, {"views": 2}]
    assert articles.index_count("by-views", where="author = 'ada'") == 2


def test_asyncio_reads_an_index(node: Served) -> None:
    """The client for asyncio reads an index and counts it."""

    async def read() -> tuple[list[Any], int]:
        async with AsyncQueryableTopic(node.url) as articles:
            keys = [row.key async for row in articles.index("by-author", "ada")]
            return keys, await articles.index_count("by-author", start="a", stop="b")

    assert asyncio.run(read()) == (["a-0", "a-2"], 2)


def test_value_of_no_type_is_refused(articles: QueryableTopic) -> None:
    """A value that no index can have is refused before anything is sent, and one of another type by the node."""
    with pytest.raises(InvalidRequest, match="eq"):
        articles.index("by-author", b"bytes")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="eq"):
        list(articles.index("by-views", "many"))


def test_values_of_an_index_are_counted(node: Served, articles: QueryableTopic) -> None:
    """Each value comes once, in the order of the values, with its number of rows; pages, ranges and both clients agree."""
    everything = [Group("100% & +#", 1), Group("ada", 2), Group("bo", 1)]
    assert list(articles.index_groups("by-author")) == everything
    assert list(articles.index_groups("by-author", order="desc", limit=2)) == everything[:0:-1]
    assert list(articles.index_groups("by-author", start="a", stop="b")) == [Group("ada", 2)]
    assert list(articles.index_groups("by-hot")) == [Group(False, 2), Group(True, 2)]

    async def read() -> list[Group]:
        async with AsyncQueryableTopic(node.url) as view:
            return [group async for group in view.index_groups("by-author", start="b")]

    assert asyncio.run(read()) == [Group("bo", 1)]


def qtopic(*arguments: str) -> Result:
    return CliRunner().invoke(commands, arguments)


def test_commands_print_tables(node: Served) -> None:
    """`qtopic index` prints the rows that the index finds, and `qtopic top` those with the greatest values."""
    found = qtopic("index", "by-author", "--eq", "ada", "--fields", "views", "--url", node.url)
    assert [line.split() for line in found.stdout.splitlines()] == [
        ["KEY", "views"],
        ["a-0", "0"],
        ["a-2", "2"],
    ]
    top = qtopic("top", "by-views", "-k", "1", "--url", node.url)
    assert top.stdout.splitlines()[1].split()[0] == "a-3"
    groups = qtopic("index", "by-author", "--groups", "--from", "a", "--url", node.url)
    assert [line.split() for line in groups.stdout.splitlines()] == [
        ["COUNT", "value"],
        ["2", "ada"],
        ["1", "bo"],
    ]
    lines = qtopic("index", "by-author", "--groups", "--json", "--url", node.url).stdout.splitlines()
    assert lines[1] == '{"value":"ada","count":2}'
    refused = qtopic("index", "by-author", "--groups", "--where", "views > 1", "--url", node.url)
    assert (refused.exit_code, "leave --where" in refused.output) == (2, True)
    wrong = qtopic("index", "by-city", "--url", node.url)
    assert wrong.exit_code != 0
    assert "by-author" in wrong.output
