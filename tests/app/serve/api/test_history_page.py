"""Run every example of docs/history.md."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from queryable_app.wire.times import parse_time
from tests.support.served import Served, served

PAGE = (Path(__file__).parents[4] / "docs" / "history.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Run a node with the records of the page."""
    with served(tmp_path_factory.mktemp("history"), partitions=1, view={"kind": "history"}) as running:
        for line in blocks("records")[0].splitlines():
            key, time, value = line.split(None, 2)
            stored = None if value == "deleted" else value.encode()
            running.put(key.encode(), stored, timestamp_ms=parse_time(time))
        yield running


def answer_lines(http: httpx.Client, path: str, parameters: dict[str, str]) -> list[str]:
    """Write an answer as the page does: a value, a failure, or the items with their offset or key."""
    answer = http.get(path, params=parameters)
    if answer.status_code != 200:
        return [f"{answer.status_code} {answer.json()['detail']}"]
    if not isinstance(answer.json(), dict) or "items" not in answer.json():
        return [answer.text]
    name = "offset" if path.endswith("/history") else "key"
    return [
        f"{item[name]} {'deleted' if item.get('deleted') else json.dumps(item['value'], separators=(',', ':'))}"
        for item in answer.json()["items"]
    ]


@pytest.mark.parametrize("example", blocks("example"), ids=lambda text: text.splitlines()[0])
def test_example_has_the_answer_that_the_page_shows(node: Served, example: str) -> None:
    """A request of the page gets the answer below it."""
    request, *expected = example.splitlines()
    path, _, query = request.removeprefix("GET ").partition("?")
    parameters = dict(pair.split("=", 1) for pair in query.split("&")) if query else {}
    with node.client() as http:
        assert answer_lines(http, path, parameters) == expected


def test_page_has_examples() -> None:
    """The page has as many examples as the test finds."""
    assert len(blocks("example")) == PAGE.count("\nGET /v1") >= 9
