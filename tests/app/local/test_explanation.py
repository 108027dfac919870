"""Test what `qtopic explain` says of a view, from its spec, Spark's analysis, and the topic's size."""

from __future__ import annotations

from typing import Any

from queryable_app.config.topic_spec import TopicSpec, parse_spec
from queryable_app.local.explanation import as_text, explanation

SUM = {"name": "paid", "op": "sum", "of": "amount", "filter": "status = 'paid'"}
MEAN = {"name": "mean", "op": "avg", "of": "amount"}
COUNT = {"name": "orders", "op": "count"}
RECORDS = {"of": None, "filter": None, "type": "-", "sqlType": ""}
AMOUNT = {"of": "amount", "filter": None, "type": "n", "sqlType": "decimal(10,2)"}


def spec(aggregate: dict[str, Any] | None = None, **fields: Any) -> TopicSpec:
    view = {} if aggregate is None else {"view": {"kind": "aggregate", "aggregate": aggregate}}
    return parse_spec({"kafka": {"bootstrapServers": "kafka:9092"}, "topic": "orders", **view, **fields})


def analysis(*inputs: dict[str, Any], group_key_format: str = "") -> dict[str, Any]:
    columns = [{"name": "amount", "type": "decimal(10,2)"}]
    return {
        "columns": columns,
        "inputs": list(inputs),
        "groupKeyFormat": group_key_format,
        "readsHeaders": False,
    }


def test_inputs_name_their_columns() -> None:
    """Columns that share an input are shown with it, and with Spark's type."""
    mean = {**MEAN, "name": "also"}
    known = explanation("v", spec({"columns": [COUNT, MEAN, mean]}), analysis(RECORDS, AMOUNT), None, None)

    assert [(each["sqlType"], each["columns"]) for each in known["inputs"]] == [
        ("", ["orders"]),
        ("decimal(10,2)", ["mean", "also"]),
    ]


def test_group_of_the_record_key_has_no_internal_topic() -> None:
    """Without other columns, each node folds what it reads, and nothing is shuffled."""
    known = explanation("v", spec({"columns": [COUNT]}), analysis(RECORDS), 6, 100)

    assert known["internalTopics"] == []
    assert [stage["where"] for stage in known["stages"]] == ["ingest of each node", "serve of each node"]


def test_group_of_other_columns_has_a_rekey_stage() -> None:
    """Other columns make a job and an internal topic, with as many partitions as the topic."""
    regrouped = spec({"groupBy": ["page"], "columns": [COUNT]})
    known = explanation("v", regrouped, analysis(RECORDS, group_key_format="string"), 6, 100)

    assert known["internalTopics"] == [{"name": "<applicationId>.rekey", "partitions": 6}]
    assert known["stages"][0]["where"] == "rekey job"
    assert known["group"] == {"by": ["page"], "keyFormat": "string"}


def test_new_key_has_a_rekey_stage() -> None:
    """A latest-value view under another key names it, and has the job and the internal topic of groups."""
    known = explanation("v", spec(view={"keyBy": ["email"]}), analysis(group_key_format="string"), 6, 100)

    assert known["key"] == {"by": ["email"], "keyFormat": "string"}
    assert known["internalTopics"] == [{"name": "<applicationId>.rekey", "partitions": 6}]
    assert known["stages"][0]["where"] == "rekey job"
    assert "\n\nKey\n  email  a string key\n" in as_text(known)


def test_executors_are_named() -> None:
    """The rekey stage says how many executors run it."""
    regrouped = spec({"groupBy": ["page"], "columns": [COUNT]}, ingest={"executors": 2})
    known = explanation("v", regrouped, analysis(RECORDS, group_key_format="string"), 6, 100)

    assert known["stages"][0]["where"] == "rekey job: a driver and 2 executors"


def test_indexes_say_what_an_entry_takes() -> None:
    """Each index is named with its field, its type and the size of an entry, and serve's stage has them."""
    indexes = [
        {"name": "by-page", "field": "page", "type": "string"},
        {"name": "by-views", "field": "stats.views", "type": "long"},
    ]
    known = explanation("v", spec(view={"indexes": indexes, "changes": True}), analysis(), 6, 100)

    assert known["indexes"][1] == {
        "name": "by-views",
        "field": "stats.views",
        "type": "long",
        "entry": "the key and 9 bytes",
    }
    assert [stage["what"] for stage in known["stages"]][-2:] == [
        "writes the index entries of a row in the same batch",
        "logs the changes of the last day",
    ]
    assert "  by-views  stats.views  long    the key and 9 bytes" in as_text(known)


def test_history_says_how_long_versions_stay() -> None:
    """A view with history is explained as one."""
    history = spec(view={"kind": "history", "history": {"retention": "30d"}})
    known = explanation("v", history, analysis(), 6, 100)

    assert known["kind"] == "history"
    assert "its versions until 30d after their replacement" in known["stages"][-1]["what"]


def test_estimates_follow_from_the_topic() -> None:
    """A node reads its share of all replicas; a row has the header and a place for each column."""
    view = spec({"columns": [COUNT]}, replicas=2, standbyReplicas=1)
    known = explanation("v", view, analysis(RECORDS), 6, 300_000)

    assert known["placement"] == {
        "nodes": 2,
        "replicasOfEachPartition": 2,
        "replicas": 12,
        "atMostOnANode": 6,
    }
    assert known["estimates"]["rebuild"]["recordsOfANode"] == 300_000
    assert known["estimates"]["rebuild"]["seconds"] == 3
    row = known["estimates"]["disk"]["bytesOfARow"]
    assert known["estimates"]["disk"]["bytesAtMost"] == 300_000 * row * 2


def test_overlapping_windows_multiply_rows() -> None:
    """A record is in several hopping windows, and each is a row."""
    window = {"size": "1m", "slide": "10s", "timeColumn": "at"}
    known = explanation("v", spec({"columns": [COUNT], "window": window}), analysis(RECORDS), 1, 10)

    assert known["window"] == {
        "kind": "hopping",
        "size": "1m",
        "slide": "10s",
        "windowsOfARecord": 6,
        "grace": "10s",
        "retention": "7d",
        "time": "at",
    }
    assert known["estimates"]["disk"]["rowsAtMost"] == 60


def test_unknown_topic_is_named() -> None:
    """Without the topic's size there are no estimates of it, and the explanation says how to get them."""
    known = explanation("v", spec({"columns": [COUNT]}), analysis(RECORDS), None, None)

    assert "rebuild" not in known["estimates"]
    assert "--kafka" in known["unknown"][0]


def test_text_shows_every_section() -> None:
    """The text for a person has the same facts."""
    text = as_text(
        explanation(
            "v",
            spec({"columns": [COUNT, SUM], "window": {"sessionGap": "30m"}}),
            analysis(RECORDS, {**AMOUNT, "filter": "status = 'paid'"}),
            3,
            1_234_567,
        )
    )

    assert "v: aggregate view of the topic orders, 3 partitions, 1,234,567 records" in text
    assert "amount where status = 'paid'  decimal(10,2)  for paid" in text
    assert "sum(amount) where status = 'paid'" in text
    assert "sessionGap  30m" in text
    for title in (
        "Stages",
        "Group",
        "Inputs",
        "Window",
        "Internal topics",
        "Placement",
        "Estimates",
        "Unknown",
    ):
        assert f"\n\n{title}\n  " in text


def test_latest_view_is_explained_too() -> None:
    """A view of the latest values has stages and columns, and no inputs."""
    latest = spec(transform={"sql": "SELECT key, value AS v FROM records"}, value={"format": "string"})
    known = explanation("v", latest, analysis(), 3, 10)

    assert known["kind"] == "latest"
    assert "inputs" not in known
    assert "transform.sql" in known["stages"][0]["what"]
