"""Test `qtopic explain` with the real Spark and a real broker, and the examples that docs/aggregates.md teaches with."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration import topics
from tests.integration.system import example, running
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "order-totals.yaml"
PAGE = (ROOT / "docs" / "aggregates.md").read_text()


def qtopic(*arguments: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "queryable_app.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, input=stdin)


def with_columns(directory: Path, *columns: dict[str, Any]) -> Path:
    document = yaml.safe_load(EXAMPLE.read_text())
    document["spec"]["view"]["aggregate"]["columns"] = list(columns)
    file = directory / "topic.yaml"
    file.write_text(yaml.safe_dump(document))
    return file


def test_example_is_explained_as_the_page_shows() -> None:
    """The page's text is what the command prints, up to the estimates."""
    (shown,) = re.findall(r"```\n(order-totals: .*?)```", PAGE, re.DOTALL)
    done = qtopic("explain", EXAMPLE)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(shown)
    assert "name a broker with --kafka" in done.stdout


def test_topic_is_looked_up(kafka: Any, tmp_path: Path) -> None:
    """With a broker, the explanation has the topic's partitions and records, and estimates of them."""
    topics.create(kafka.bootstrap, "orders", 3)
    topics.produce(kafka.bootstrap, "orders", [(b"k", b"{}")] * 7)
    done = qtopic("explain", EXAMPLE, "--kafka", kafka.bootstrap, "--json")
    known = json.loads(done.stdout)

    assert known["topic"] == {"name": "orders", "partitions": 3, "records": 7}
    assert known["estimates"]["rebuild"]["recordsOfANode"] == 7
    assert [each["sqlType"] for each in known["inputs"]] == [
        "",
        "decimal(10,2)",
        "decimal(10,2)",
        "int",
        "string",
    ]


@pytest.mark.parametrize(
    ("column", "sentences"),
    [
        ({"op": "sum", "of": "amont"}, ["with name `amont` cannot be resolved.", "line 1 pos 0"]),
        ({"op": "median", "of": "amount"}, ["is not one of count, sum"]),
    ],
    ids=["name", "op"],
)
def test_what_cannot_work_is_refused(tmp_path: Path, column: dict[str, Any], sentences: list[str]) -> None:
    """The command ends with the column's name and Spark's sentence, and with the code of an invalid file."""
    done = qtopic("explain", with_columns(tmp_path, {"name": "t", **column}))

    assert (done.returncode, done.stdout) == (2, "")
    for sentence in ["spec.view.aggregate.columns[", *sentences]:
        assert sentence in done.stderr


def test_unreachable_broker_leaves_the_topic_unknown() -> None:
    """The rest is explained, and the explanation says that the broker did not answer."""
    done = qtopic("explain", EXAMPLE, "--kafka", "127.0.0.1:1", "--json")

    assert done.returncode == 0
    assert "Kafka cannot be reached at 127.0.0.1:1" in json.loads(done.stdout)["unknown"][0]


# What the page runs: an example, records for it, and its answers by key.
LESSONS = [
    (file, records, dict(re.findall(r"qtopic get (\w+)\n```\n\n```json\n(.*?)\n```", answers)))
    for file, records, answers in re.findall(
        r"qtopic run -f (\S+)\n```\n\n```sh\nqtopic produce <<END\n(.*?)END\n```\n(.*?)(?=\n## )",
        PAGE,
        re.DOTALL,
    )
]


def test_page_teaches_all_groups() -> None:
    """The page has lessons of records by their key, by another column, and by the parts of a value."""
    taught = ["examples/order-totals.yaml", "examples/customer-totals.yaml", "examples/word-count.yaml"]
    assert [file for file, _, _ in LESSONS] == taught


@pytest.mark.parametrize(
    ("file", "records", "answers"), LESSONS, ids=[Path(file).stem for file, _, _ in LESSONS]
)
def test_page_shows_what_the_example_answers(
    kafka: Any, tmp_path: Path, file: str, records: str, answers: dict[str, str]
) -> None:
    """The records of the page, produced to its example, give the answers of the page."""
    document = example(Path(file).name, kafka.bootstrap)
    topic = document["spec"]["topic"] = f"taught-{Path(file).stem}"
    topics.create(kafka.bootstrap, topic, 4)
    with running(document, tmp_path) as system:
        assert qtopic("produce", "--data", system.data, stdin=records).returncode == 0

        def read(key: str) -> Any:
            text = system.get(f"/v1/keys/{key}").text
            return json.loads(text, parse_float=Decimal)

        assert len(answers) == 2
        for key, answer in answers.items():
            expected = json.loads(answer, parse_float=Decimal)
            eventually(f"{key} has the page's answer", lambda k=key, e=expected: read(k) == e)  # type: ignore[misc]
            assert str(read(key)) == str(expected)  # 5.00 is not 5
