"""Test which resource files are accepted, and how each mistake is reported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from queryable_app.local.resource_file import ResourceError, load_resource, parse_resource

SMALL = """\
apiVersion: queryabletopics.io/v1alpha1
kind: QueryableTopic
metadata: {name: users}
spec:
  kafka: {bootstrapServers: "kafka:9092"}
  topic: users
"""


def mistakes(text: str) -> list[str]:
    with pytest.raises(ResourceError) as caught:
        parse_resource(text, "f.yaml")
    lines = str(caught.value).splitlines()
    assert all(line.startswith("f.yaml: ") for line in lines)
    return [line.removeprefix("f.yaml: ") for line in lines]


def test_smallest_resource_is_accepted() -> None:
    """Kafka's address and the topic's name are enough."""
    resource = parse_resource(SMALL, "f.yaml")

    assert (resource.name, resource.spec.topic, resource.spec.replicas) == ("users", "users", 1)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("standbyReplica: 1", "spec.standbyReplica: unknown field; did you mean standbyReplicas?"),
        ("onbadrecord: Skip", "spec.onbadrecord: unknown field; did you mean onBadRecord?"),
        ("xyz: 1", "spec.xyz: unknown field"),
        ("ttl: 1d", "spec.ttl: unknown field; did you mean spec.view.ttl?"),
        ("sql: SELECT 1", "spec.sql: unknown field; did you mean spec.transform.sql?"),
        ("format: json", "spec.format: unknown field; did you mean spec.key.format or spec.value.format?"),
        ("view: {tll: 1d}", "spec.view.tll: unknown field; did you mean ttl?"),
        ("replicas: many", "spec.replicas: must be a whole number, not 'many'"),
        ("replicas: 2.0", "spec.replicas: must be a whole number, not 2.0"),
        ("replicas: true", "spec.replicas: must be a whole number, not true"),
        ("replicas: 0", "spec.replicas: must be at least 1, not 0"),
        ("replicas: 5000", "spec.replicas: must be at most 1000, not 5000"),
        ("key: text", "spec.key: must be a group of fields, not 'text'"),
        ("key:", "spec.key: must be a group of fields, not an empty value"),
        ("read: {ingest: 1}", "spec.read.ingest: must be true or false, not 1"),
        ("transform: {sql: 5}", "spec.transform.sql: must be text, not 5; put it in quotes"),
        ("transform: {sql: ''}", "spec.transform.sql: must not be empty"),
        ("key: {format: strng}", "spec.key.format: 'strng' is not one of string, "),
        ("ingest: {mode: RealTime}", "microbatch; did you mean realtime?"),
        ("view: {ttl: 30 days}", "spec.view.ttl: '30 days' is not a duration: write a number and a unit"),
        ("view: {ttl: 0s}", "spec.view.ttl: must be longer than 0s"),
        ('view: {ttl: "1d\\n"}', "spec.view.ttl: '1d\\n' is not a duration"),
        ("ingest: {batch: 1s}", "spec.ingest.batch: Spark's Real-Time Mode takes no batch under 5s"),
        ("ingest: {driverMemory: lots}", "spec.ingest.driverMemory: 'lots' is not an amount of memory"),
        ("standbyReplicas: 1", "spec.standbyReplicas: 1 standby replicas need at least 2 nodes"),
        ("read: {consistency: at-least}", "spec.read.consistency: 'at-least' is not one of any, bounded, strong"),
        ("view: {indexes: [{name: a, field: b, type: long, kind: x}]}", "spec.view.indexes[0].kind: unknown field"),
        ("view: {indexes: [{name: a, field: b}]}", "spec.view.indexes[0].type: missing"),
        ("view: {keyBy: [a, a]}", "spec.view.keyBy: the same entry is there twice"),
        ("view: {aggregate: {columns: [{name: _a, op: count}]}}", "columns[0].name: '_a' begins with _"),
        ("view: {aggregate: {columns: [{name: a, op: cnt}]}}", "collect_set, approx_count_distinct, "),
        ("view: {aggregate: {columns: [{name: a, op: count, of: 5}]}}", "columns[0].of: must be text, not 5"),
        (
            "view: {aggregate: {columns: [{name: q, op: approx_quantiles, of: a, quantiles: [high]}]}}",
            "spec.view.aggregate.columns[0].quantiles[0]: must be a number, not 'high'",
        ),
        (
            "view: {aggregate: {columns: [{name: q, op: approx_quantiles, of: a, quantiles: [1.5]}]}}",
            "spec.view.aggregate.columns[0].quantiles[0]: must be at most 1, not 1.5",
        ),
        ("view: {aggregate: {columns: [{name: a, op: count}], window: {size: 0s}}}", ".window.size: must be longer than 0s"),
        (
            "view: {kind: aggregate, aggregate: {columns: [{name: a, op: sum}]}}",
            "spec.view.aggregate.columns[a].of: missing",
        ),
    ],
)  # fmt: skip
def test_mistake_is_reported_in_one_line(fields: str, expected: str) -> None:
    """The line has the path, the mistake and, if there is one, the nearest valid name."""
    [line] = mistakes(f"{SMALL}  {fields}\n")

    assert expected in line


def test_all_mistakes_are_reported_at_once() -> None:
    """A file with several mistakes gives a line for each."""
    found = mistakes(f"{SMALL}  replicas: 0\n  kye: {{}}\n  view: {{ttl: x}}\n")

    assert [line.split(":")[0] for line in found] == ["spec.kye", "spec.replicas", "spec.view.ttl"]


def test_repeated_name_is_reported() -> None:
    """Two indexes cannot have the same name, as in a cluster."""
    index = "{name: a, field: b, type: long}"

    assert "spec.view.indexes: the name 'a' is there twice" in mistakes(
        f"{SMALL}  view: {{indexes: [{index}, {index}]}}\n"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "0 YAML documents; give a file with one QueryableTopic"),
        (SMALL + "---\n" + SMALL, "2 YAML documents"),
        ("a: b: c", "not YAML: mapping values are not allowed here in line 1"),
        (SMALL + "  topic: other\n", "not YAML: the field 'topic' is there twice in line 7"),
        ("a: &a [1]\nb: *a", "not YAML: aliases (*) are not read"),
        ("[" * 5000, "nested too deeply"),
        (SMALL + "  ? [a]\n  : 1\n", "not YAML: a list is no name of a field in line 7, column 5"),
        (SMALL + "  ? {a: b}\n  : 1\n", "not YAML: a group of fields is no name of a field in line 7"),
        (SMALL + "  5: 1\n", "not YAML: the field's name 5 is no text; put it in quotes in line 7"),
        (SMALL + "  on: 1\n", "not YAML: the field's name on is no text; put it in quotes in line 7"),
        (SMALL + "  replicas: !!int x\n", "not YAML: a value is not what its form or its tag says"),
        (SMALL + "  replicas: 2020-02-30\n", "not YAML: a value is not what its form or its tag says"),
        (SMALL + "  ttl: 2020-02-03\n", "spec.ttl: YAML reads this as a date; put it in quotes"),
        (SMALL.replace("{name: users}", "{name: users, annotations: {a: .inf}}"),
         "metadata.annotations.a: YAML reads this as a number that is not finite; put it in quotes"),
        (SMALL + '  "a\\nb": 1\n', "spec.'a\\nb': unknown field"),
        (SMALL + "  ? " + "x" * 5000 + "\n  : 1\n", "spec.'xxxx"),
        ("!!map [1]", "not YAML: expected a mapping node"),
        ("kind: [1]\napiVersion: {a: 1}", "is needed, and this is {'a': 1} [1]"),
        ("- 1", "not a resource; it begins with `apiVersion: queryabletopics.io/v1alpha1`"),
        ("kind: Pod\napiVersion: v1", "is needed, and this is v1 Pod"),
        (SMALL.replace("name: users", ""), "metadata.name: missing; give the view a name"),
        (SMALL.replace("name: users", "name: Us_ers"), "metadata.name: 'Us_ers' is not a name: lower-case letters"),
        (SMALL.replace("topic: users", ""), "spec.topic: missing"),
        (SMALL.replace("topic: users", "topic: a/b"), "spec.topic: 'a/b' is not a topic's name"),
        (SMALL.replace("kafka:9092", "kafka"), "spec.kafka.bootstrapServers: 'kafka' is not host:port"),
    ],
    ids=lambda text: text[:30] if "\n" not in text else None,
)  # fmt: skip
def test_file_that_is_no_resource_is_reported_in_one_line(text: str, expected: str) -> None:
    """A file that is empty, broken, of another kind or without a name gives one line that says what is needed."""
    [line] = mistakes(text)

    assert expected in line


_SCALARS = st.sampled_from(
    [
        *["", "~", "1", "-1", "1.5", ".nan", ".inf", "yes", "2020-02-03", "2020-13-99", "1:99", "0x", "0b2"],
        *["!!int x", "!!bool 2", "!!binary é", "!!timestamp x", "!!set {a}", "!!omap [1]", "!!pairs [1]"],
        *[
            "!!python/name:os.system ",
            "!!map [1]",
            "!!seq {a: 1}",
            "&a b",
            "*a",
            "<<",
            "=",
            "'",
            '"',
            '"\\ud800"',
        ],
        *['"\\x00"', "text", "a: b", "? [a]", "? {a: b}", "- x", "---", "...", "%YAML 9.9", "9" * 5000],
    ]
)
_NODES: st.SearchStrategy[str] = st.recursive(
    _SCALARS | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]")
        | st.lists(st.tuples(inner, inner), max_size=3).map(
            lambda pairs: f"{{{', '.join(f'? {key} : {value}' for key, value in pairs)}}}"
        )
    ),
    max_leaves=6,
)
_FIELDS = st.sampled_from(
    [
        "kafka",
        "topic",
        "replicas",
        "key",
        "value",
        "view",
        "read",
        "ingest",
        "transform",
        "storage",
        "onBadRecord",
    ]
)


@given(_NODES | st.tuples(_FIELDS, _NODES).map(lambda field: f"{SMALL}  {field[0]}: {field[1]}\n"))
@example("? [a]\n: b")
@example("metadata: {? {a: b} : c}")
def test_any_yaml_is_a_resource_or_is_reported(text: str) -> None:
    """Any text is a resource that can be written as JSON, or gives lines that name the mistakes."""
    lines = ""
    try:
        json.dumps(parse_resource(text, "f.yaml").document, allow_nan=False)
    except ResourceError as refused:
        lines = str(refused)
    assert all(line.startswith("f.yaml: ") and len(line) < 700 for line in lines.splitlines())


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"\xff\xfe", "not text in UTF-8"),
        (b"#" * 1_100_000, "larger than 1 MiB"),
    ],
    ids=["missing", "not-text", "large"],
)
def test_unreadable_file_is_reported(tmp_path: Path, content: bytes | None, expected: str) -> None:
    """A missing, binary or very large file is refused with one sentence that names the file."""
    file = tmp_path / "topic.yaml"
    if content is not None:
        file.write_bytes(content)

    with pytest.raises(ResourceError, match=expected) as caught:
        load_resource(file)
    assert str(caught.value).startswith(str(file))
