"""Test that the row writer and the Python APIs judge JSON alike, with the real class in Spark's JVM."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from py4j.java_gateway import JavaObject
from pyspark.sql import SparkSession

from queryable_app.wire.json_text import BadJson, parse_json
from tests.support.golden import json_values, shortened

_PIECES = st.sampled_from(
    [
        *'[]{},:"\\eE.-+01 ',
        "\n",
        "\x00",
        "\x1f",
        "\\u00",
        "\\ud83d",
        "\\ude00",
        "23",
        "a",
        "é",
        "\U0001f600",
        "\ufeff",
        "true",
        "false",
        "null",
        "NaN",
        '"a"',
        '"b":',
    ]
)
_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def _nearly_json(draw: st.DrawFn) -> bytes:
    """Draw JSON, or JSON with one part replaced, also deep or with long numbers."""
    text = json.dumps(draw(_VALUES), ensure_ascii=draw(st.booleans())).encode(errors="replace")
    at = draw(st.integers(0, len(text)))
    end = draw(st.integers(at, min(at + 3, len(text))))
    piece = draw(st.just(b"") | _PIECES.map(str.encode) | st.binary(max_size=2))
    text = draw(st.sampled_from([text, text[:at] + piece + text[end:]]))
    deeper = draw(st.sampled_from([0, 0, 0, 97, 98, 99, 100, 101]))
    digits = draw(st.sampled_from([0, 0, 0, 998, 999, 1000, 1001]))
    return b"[" * deeper + text + b"9" * digits + b"]" * deeper


_NAMES = st.lists(_PIECES, max_size=4).map("".join).map(lambda name: f'{{"{name}":1}}'.encode())
_TEXTS = (
    _nearly_json()
    | _NAMES
    | st.lists(_PIECES, max_size=8).map("".join).map(str.encode)
    | st.binary(max_size=6)
)


def _problems(spark: SparkSession, texts: list[bytes]) -> list[str | None]:
    """Return the row writer's verdict on each value."""
    jvm: Any = spark._jvm
    checks: JavaObject = jvm.io.queryabletopics.Checks
    return [checks.problem("string", b"k", "json", text) for text in texts]


def _is_good(text: bytes) -> bool:
    try:
        parse_json(text)
    except BadJson:
        return False
    return True


@pytest.mark.parametrize("kind", ["good", "bad"])
def test_row_writer_judges_json_as_python_does(spark: SparkSession, kind: str) -> None:
    """The row writer judges each case of the Python APIs as they do."""
    texts = json_values(kind)
    problems = _problems(spark, texts)
    assert [
        shortened(t)
        for t, problem in zip(texts, problems, strict=True)
        if (problem is None) != (kind == "good")
    ] == []
    assert all(len(problem) < 120 for problem in problems if problem is not None)


def test_most_values_need_no_parser(spark: SparkSession) -> None:
    """Plain documents pass in one scan; escapes, other characters and non-JSON go to the parser."""
    jvm: Any = spark._jvm
    accepts = jvm.io.queryabletopics.PlainJson.accepts
    plain = [b"{}", b"[]", b" 1.5e-3 ", b'"a"', b'{"a": [1, {"b": null}], "c": true}', b"[[], [{}], -0]"]
    others = [
        b"",
        b'"\\n"',
        '"é"'.encode(),
        b"01",
        b"1 2",
        b"[1,]",
        b'{"a"}',
        b"{,}",
        b"tru",
        b"[" * 61 + b"]" * 61,
    ]
    assert [text for text in plain if not accepts(text)] == []
    assert [text for text in others if accepts(text)] == []


@given(st.lists(_TEXTS, min_size=20, max_size=20))
@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_ingest_and_python_agree(spark: SparkSession, texts: list[bytes]) -> None:
    """Ingest and Python accept the same texts, so that no acknowledged write is skipped."""
    problems = _problems(spark, texts)
    differ = [
        (text, problem)
        for text, problem in zip(texts, problems, strict=True)
        if (problem is None) != _is_good(text)
    ]
    assert differ == []


def test_exceeded_bound_is_the_reason(spark: SparkSession) -> None:
    """A record beyond a bound is a bad record, and the reason names the bound."""
    deep, long = _problems(spark, [b"[" * 101 + b"]" * 101, b"9" * 1001])
    assert deep == "value: nested deeper than 100"
    assert long == "value: a number of more than 1000 characters"
