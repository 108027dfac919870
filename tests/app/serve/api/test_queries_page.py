"""Run every example of docs/queries.md."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml

from queryable_app.wire.times import parse_time
from tests.support.entries import Record, row_of, view
from tests.support.served import Served, served

CURL = shutil.which("curl")
PAGE = (Path(__file__).parents[4] / "docs" / "queries.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Run a node with the rows of the page."""
    view = yaml.safe_load(blocks("indexes")[0])
    with served(tmp_path_factory.mktemp("queries"), partitions=3, view=view) as running:
        for line in blocks("rows")[0].splitlines():
            key, value = line.split(" ", 1)
            running.put(key.encode(), value.encode())
        yield running


def answer_lines(http: httpx.Client, path: str, parameters: dict[str, str]) -> list[str]:
    """Write an answer as the page does: a count, a failure, or the items, with their values if fields are named."""
    body = http.get(path, params=parameters).json()
    if "status" in body:
        return [f"{body['status']} {body['detail']}"]
    if "count" in body:
        return [str(body["count"])]
    if body["items"] and "count" in body["items"][0]:
        return [f"{item['value']} {item['count']}" for item in body["items"]]
    if "fields" not in parameters:
        return [item["key"] for item in body["items"]]
    lines = http.get(path, params=parameters, headers={"accept": "application/x-ndjson"}).text
    items = re.findall(r'^{"key":"(.*?)","value":(.*),"partition":.*}$', lines, re.MULTILINE)
    return [f"{key} {value}" for key, value in items]


@pytest.mark.parametrize("example", blocks("example"), ids=lambda text: text.splitlines()[0])
def test_example_has_the_answer_that_the_page_shows(node: Served, example: str) -> None:
    """A request of the page gets the answer below it."""
    request, *expected = example.splitlines()
    path, _, query = request.removeprefix("GET ").partition("?")
    parameters = dict(pair.split("=", 1) for pair in query.split("&"))
    with node.client() as http:
        assert answer_lines(http, path, parameters) == expected


@pytest.fixture(scope="module")
def readings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Run a node with the readings of the page, as the writer sends them."""
    with served(tmp_path_factory.mktemp("entries"), partitions=1, view=view()) as running:
        for offset, line in enumerate(blocks("readings")[0].splitlines()):
            key, value = line.split(" ", 1)
            time_ms = parse_time(str(json.loads(value)["at"]))
            assert time_ms is not None
            running.put_slice(row_of(offset, Record(key.encode(), time_ms, value.encode())))
        yield running


@pytest.mark.parametrize("example", blocks("entries"), ids=lambda text: text.splitlines()[0])
def test_example_has_the_entries_that_the_page_shows(readings: Served, example: str) -> None:
    """A request for entries of the page gets the times and values below it."""
    request, *expected = example.splitlines()
    path, _, query = request.removeprefix("GET ").partition("?")
    parameters = dict(pair.split("=", 1) for pair in query.split("&"))
    with readings.client() as http:
        lines = http.get(path, params=parameters, headers={"accept": "application/x-ndjson"}).text
    items = re.findall(r'^{"key":".*?","time":"(.*?)","value":(.*),"partition":.*}$', lines, re.MULTILINE)
    assert [f"{time} {value}" for time, value in items] == expected


def printed_by(node: Served, code: str) -> list[str]:
    """Run Python of the page against a node, and return the lines that it prints."""
    first = "from queryable_app.client import QueryableTopic\n"
    command = [sys.executable, "-c", first + code.replace("http://127.0.0.1:8080", node.url)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()


def printed_by_commands(node: Served, block: str) -> list[list[str]]:
    """Run the commands of the page against a node, and return the lines that each prints."""
    return [
        subprocess.run(
            [sys.executable, "-m", "queryable_app.cli", *shlex.split(line)[1:], "--url", node.url],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout.splitlines()
        for line in block.splitlines()
    ]


def test_python_of_the_page_prints_orders(node: Served) -> None:
    """The Python example finds the paid orders, counts, and looks into the index and into the filter of keys."""
    *rows, counted, by_total, groups, members = printed_by(node, blocks("python")[0])
    assert rows
    assert all(re.fullmatch(r"o-\d \{'total': .*\}", row) for row in rows)
    assert re.fullmatch(r"\d True", counted)
    assert by_total.startswith("['o-")
    assert "'open': " in groups
    assert members.startswith("False ")


def test_commands_of_the_page_print_orders(node: Served) -> None:
    """Each command prints rows, as a table, as JSON and as CSV."""
    scan, range_, prefix, index, top = printed_by_commands(node, blocks("sh")[1])
    assert all("o-" in lines[-1] for lines in (scan, index, top))
    assert [json.loads(line)["key"] for line in range_] == ["o-2", "o-3", "o-4"]
    assert prefix[0] == "key,status,total"
    assert len(top) == 4  # with the heads of the columns


def test_python_of_the_page_prints_readings(readings: Served) -> None:
    """The Python example of entries prints the newest one first."""
    lines = printed_by(readings, blocks("python")[1])
    times = [int(line.split()[0]) for line in lines]
    assert len(times) > 1
    assert times == sorted(times, reverse=True)


def test_commands_of_the_page_print_readings(readings: Served) -> None:
    """The commands for entries print a table and CSV, the newest one first."""
    table, csv = printed_by_commands(readings, blocks("sh")[2])
    assert len(table) > 2
    assert csv[0] == "key,time,celsius"
    assert csv[1].endswith(",22.4")


def test_request_with_curl_is_that_of_the_page(node: Served) -> None:
    """The parameters that the page encodes with curl find the paid orders of at least 100."""
    *_, condition = shlex.split(blocks("sh")[0])
    name, where = condition.split("=", 1)
    with node.client() as http:
        items = http.get("/v1/scan", params={name: where}).json()["items"]
    assert items
    assert all(item["value"]["status"] == "paid" and item["value"]["total"] >= 100 for item in items)


@pytest.mark.skipif(CURL is None, reason="curl is missing")
def test_command_with_curl_of_the_page_finds_the_same_rows(node: Served) -> None:
    """The line with curl, run as it stands, finds the paid orders of at least 100."""
    program, *arguments = shlex.split(blocks("sh")[0].replace("http://127.0.0.1:8080", node.url))
    assert program == "curl"
    command = [str(CURL), "-s", "--fail", "--noproxy", "*", *arguments]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert [item["key"] for item in json.loads(printed)["items"]] == ["o-1", "o-3"]


def test_page_has_examples() -> None:
    """The page has as many examples as the tests find."""
    assert len(blocks("example")) + len(blocks("entries")) == PAGE.count("\nGET /v1") >= 9
