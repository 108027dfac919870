"""Test how `spec.view.aggregate` becomes frozen values, or an error that names the field and what to write."""

from __future__ import annotations

from typing import Any

import pytest

from queryable_app.config.aggregate_spec import AggregateColumn, AggregateSpec, WindowSpec
from queryable_app.config.topic_spec import SpecError, TopicSpec, parse_spec

COUNT = {"name": "n", "op": "count"}


def parsed(aggregate: dict[str, Any] | None, **view: Any) -> TopicSpec:
    fields = {"kind": "aggregate", **({} if aggregate is None else {"aggregate": aggregate}), **view}
    return parse_spec({"kafka": {"bootstrapServers": "kafka:9092"}, "topic": "orders", "view": fields})


def mistake(aggregate: dict[str, Any] | None, **view: Any) -> str:
    with pytest.raises(SpecError) as refused:
        parsed(aggregate, **view)
    return str(refused.value)


def column_mistake(**fields: Any) -> str:
    return mistake({"columns": [{"name": "c", **fields}]})


def window_mistake(**window: Any) -> str:
    return mistake({"columns": [COUNT], "window": window})


def test_column_has_every_field_of_its_operation() -> None:
    """The expression, the condition and the bounds of a column reach the parsed value, in the spec's order."""
    columns = [
        COUNT,
        {"name": "paid", "op": "sum", "of": "amount", "filter": "status = 'paid'"},
        {"name": "tags", "op": "collect_set", "of": "tag"},
        {"name": "few", "op": "collect_set", "of": "tag", "limit": 3},
        {"name": "best", "op": "top_k", "of": "page", "k": 10},
        {"name": "times", "op": "approx_quantiles", "of": "ms", "quantiles": [0, 0.5, 1]},
    ]

    assert parsed({"columns": columns}).aggregate == AggregateSpec(
        (
            AggregateColumn("n", "count"),
            AggregateColumn("paid", "sum", "amount", "status = 'paid'"),
            AggregateColumn("tags", "collect_set", "tag", limit=1000),
            AggregateColumn("few", "collect_set", "tag", limit=3),
            AggregateColumn("best", "top_k", "page", k=10),
            AggregateColumn("times", "approx_quantiles", "ms", quantiles=(0.0, 0.5, 1.0)),
        )
    )


@pytest.mark.parametrize(
    ("fields", "window"),
    [
        ({"size": "1m"}, WindowSpec(60_000, 60_000)),
        ({"size": "1h", "slide": "1m"}, WindowSpec(3_600_000, 60_000)),
        ({"size": "100ms", "slide": "1ms", "grace": "0s"}, WindowSpec(100, 1, grace_ms=0)),
        ({"sessionGap": "30m"}, WindowSpec(gap_ms=1_800_000)),
        (
            {"size": "1m", "grace": "1d", "retention": "1d", "timeColumn": "at"},
            WindowSpec(60_000, 60_000, 0, 86_400_000, 86_400_000, "at"),
        ),
    ],
    ids=["tumbling", "hopping", "most windows", "session", "all fields"],
)
def test_window_has_its_durations(fields: dict[str, Any], window: WindowSpec) -> None:
    """A window is tumbling, hopping or a session; grace and retention have defaults."""
    aggregate = parsed({"columns": [COUNT], "window": fields}).aggregate

    assert aggregate is not None
    assert aggregate.window == window


def test_latest_view_has_no_aggregate() -> None:
    """A view of another kind computes nothing, and stores records' values."""
    spec = parse_spec({"kafka": {"bootstrapServers": "kafka:9092"}, "topic": "orders"})

    assert (spec.aggregate, spec.stored_format) == (None, "json")


def test_aggregate_view_stores_states() -> None:
    """The stored format is `aggregate`, whatever the format of the topic's values, with and without SQL."""
    assert parsed({"columns": [COUNT]}).stored_format == "aggregate"


@pytest.mark.parametrize(
    ("aggregate", "fields", "path"),
    [
        ({"groupBy": ["page", "page"]}, {}, "spec.view.aggregate.groupBy"),
        ({}, {"ingest": {"executors": 2}}, "spec.ingest.executors"),
        ({"groupBy": ["page"]}, {"read": {"ingest": True}}, "spec.read.ingest"),
        ({"groupBy": ["page"]}, {"onBadRecord": "DeadLetter"}, "spec.onBadRecord"),
    ],
)
def test_groups_of_other_columns_have_limits(
    aggregate: dict[str, Any], fields: dict[str, Any], path: str
) -> None:
    """What a view with groupBy does not have in this version is refused, with the path of the field."""
    view = {"kind": "aggregate", "aggregate": {"columns": [COUNT], **aggregate}}
    with pytest.raises(SpecError, match=rf"^{path}: "):
        parse_spec({"kafka": {"bootstrapServers": "kafka:9092"}, "topic": "t", "view": view, **fields})


@pytest.mark.parametrize(
    ("fields", "path", "advice"),
    [
        ({"op": "median", "of": "a"}, "columns[c].op", "use one of count, sum"),
        ({"op": "sum"}, "columns[c].of", "write the column or the expression"),
        ({"op": "top_k", "of": "a"}, "columns[c].k", "write how many"),
        ({"op": "top_k", "of": "a", "k": 0}, "columns[c].k", "1 to 1000"),
        ({"op": "top_k", "of": "a", "k": 1001}, "columns[c].k", "1 to 1000"),
        ({"op": "top_k", "of": "a", "k": True}, "columns[c].k", "1 to 1000"),
        ({"op": "sum", "of": "a", "k": 3}, "columns[c].k", "only top_k"),
        ({"op": "collect_set", "of": "a", "limit": 0}, "columns[c].limit", "1 to 10000"),
        ({"op": "collect_set", "of": "a", "limit": 100_000}, "columns[c].limit", "1 to 10000"),
        ({"op": "sum", "of": "a", "limit": 3}, "columns[c].limit", "only collect_set"),
        ({"op": "approx_quantiles", "of": "a"}, "columns[c].quantiles", "such as [0.5, 0.99]"),
        ({"op": "approx_quantiles", "of": "a", "quantiles": []}, "columns[c].quantiles", "1 to 32"),
        ({"op": "approx_quantiles", "of": "a", "quantiles": [1.1]}, "columns[c].quantiles", "from 0 to 1"),
        (
            {"op": "approx_quantiles", "of": "a", "quantiles": [float("nan")]},
            "columns[c].quantiles",
            "0 to 1",
        ),
        ({"op": "approx_quantiles", "of": "a", "quantiles": ["0.5"]}, "columns[c].quantiles", "from 0 to 1"),
        ({"op": "approx_quantiles", "of": "a", "quantiles": [0.5, 0.5]}, "columns[c].quantiles", "twice"),
        ({"op": "min", "of": "a", "quantiles": [0.5]}, "columns[c].quantiles", "only approx_quantiles"),
    ],
    ids=str,
)
def test_wrong_column_is_named(fields: dict[str, Any], path: str, advice: str) -> None:
    """A field that the operation lacks, has for nothing, or has out of bounds is refused, with what to write."""
    refused = column_mistake(**fields)

    assert refused.startswith(f"spec.view.aggregate.{path}: ")
    assert advice in refused


@pytest.mark.parametrize(
    ("window", "field", "advice"),
    [
        ({"size": "0ms"}, ".size", "more than 0 ms"),
        ({"sessionGap": "0s"}, ".sessionGap", "more than 0 ms"),
        ({"size": "1m", "slide": "0s"}, ".slide", "more than 0 ms"),
        ({"size": "1m", "retention": "0s", "grace": "0s"}, ".retention", "more than 0 ms"),
        ({"size": "soon"}, ".size", "write a number and a unit"),
        ({"size": "3651d"}, ".size", "more than ten years"),
        ({"size": "1m", "grace": "3651d"}, ".grace", "more than ten years"),
        ({}, "", "either size, or sessionGap"),
        ({"size": "1m", "sessionGap": "1m"}, "", "either size, or sessionGap"),
        ({"slide": "1m", "sessionGap": "1m"}, ".slide", "leave the field out"),
        ({"size": "1m", "slide": "61s"}, ".slide", "at most the size"),
        ({"size": "101ms", "slide": "1ms"}, ".slide", "in 101 windows"),
        ({"size": "1m", "grace": "2d", "retention": "1d"}, ".grace", "at most the retention"),
        ({"size": "1m", "retention": "9s"}, ".grace", "10s is longer than the retention"),
    ],
    ids=str,
)
def test_wrong_window_is_named(window: dict[str, Any], field: str, advice: str) -> None:
    """A window that no record could be in, that never closes, or that costs too much is refused."""
    refused = window_mistake(**window)

    assert refused.startswith(f"spec.view.aggregate.window{field}: ")
    assert advice in refused


@pytest.mark.parametrize("name", ["", "_errors", "n" * 129, 5, None], ids=repr)
def test_wrong_name_is_named(name: object) -> None:
    """A column needs a name that does not begin with an underscore, since the answer's own members do."""
    refused = mistake({"columns": [COUNT, {"name": name, "op": "count"}]})

    assert refused.startswith("spec.view.aggregate.columns[1].name: ")


def test_repeated_name_is_refused() -> None:
    """Each member of the answer has its own name."""
    assert "two columns are called n" in mistake({"columns": [COUNT, {"name": "n", "op": "max", "of": "a"}]})


@pytest.mark.parametrize("columns", [0, 65])
def test_number_of_columns_is_bounded(columns: int) -> None:
    """An aggregate has 1 to 64 columns."""
    refused = mistake({"columns": [{"name": f"c{i}", "op": "count"} for i in range(columns)]})

    assert refused.startswith("spec.view.aggregate.columns: ")


def test_kind_needs_its_field() -> None:
    """The kind aggregate says what to compute."""
    assert mistake(None).startswith("spec.view.aggregate: missing")


def test_field_needs_its_kind() -> None:
    """An aggregate in a view of another kind is refused, and never ignored."""
    assert mistake({"columns": [COUNT]}, kind="latest").startswith("spec.view.kind: ")


def test_aggregate_has_no_ttl() -> None:
    """An aggregate's rows do not age by a record's timestamp; windows have a retention."""
    refused = mistake({"columns": [COUNT]}, ttl="1d")

    assert refused.startswith("spec.view.ttl: ")
    assert "window" in refused
