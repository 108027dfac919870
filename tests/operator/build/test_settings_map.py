"""Test building and parsing a revision's ConfigMap."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryable_app.config.topic_spec import parse_spec_json
from queryable_app.placement.assignment import Placement, initial_placement
from queryable_app.wire.disk_format import FORMAT_VERSION
from queryable_operator.build.children import WANTED_ANNOTATION
from queryable_operator.build.settings_map import RevisionRecord, config_map, record_of
from queryable_operator.spec.resource import SPEC_CHARACTERS_MAX
from tests.support.view import FULL, view

PLACEMENT = initial_placement("shop.users.r1", 4, ["http://a:8080", "http://b:8080"], 2)


def record(**fields: Any) -> RevisionRecord:
    usual: dict[str, Any] = {
        "spec": view(**FULL).raw,
        "placement": PLACEMENT,
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": []}},
        "domains": {0: "zone-a", 1: "zone-b"},
        "spec_hash": "0123456789abcdef",
        "roll_hash": "fedcba9876543210",
        "partitions": 4,
        "image": "example.com/node:1",
    }
    return RevisionRecord(**(usual | fields))


TEXTS = st.text(max_size=20)
RECORDS = st.builds(
    record,
    domains=st.dictionaries(st.integers(0, 999), TEXTS),
    template=st.dictionaries(TEXTS, TEXTS),
    spec_hash=TEXTS,
    image=TEXTS,
    disk_format=st.integers(1, 99),
    group_key_format=st.sampled_from(["", "string", "long", "json"]),
)


@given(RECORDS)
def test_record_is_parsed_as_built(written: RevisionRecord) -> None:
    """The operator reads the record that it wrote."""
    assert record_of(config_map(view(), 1, written)) == written


def test_nodes_can_read_their_files() -> None:
    """Spec and placement are in the nodes' own formats."""
    data = config_map(view(), 1, record())["data"]

    assert parse_spec_json(data["spec.json"]) == view(**FULL).spec
    assert Placement.from_json(data["placement.json"]) == PLACEMENT


def test_disk_format_stays_the_revisions() -> None:
    """A release with another format does not change an earlier revision's record."""
    older = record(disk_format=FORMAT_VERSION + 1)

    assert config_map(view(), 1, older)["metadata"]["annotations"]["queryabletopics.io/disk-format"] == str(
        FORMAT_VERSION + 1
    )


@pytest.mark.parametrize(
    ("where", "key", "text"),
    [
        ("data", "spec.json", None),
        ("data", "spec.json", "[]"),
        ("data", "spec.json", "{"),
        ("data", "placement.json", "{}"),
        ("data", "placement.json", PLACEMENT.to_json().replace("0", '"x"')),
        ("data", "domains.json", '{"one": "a"}'),
        ("data", "template.json", "null"),
        ("annotations", "queryabletopics.io/partitions", "5"),
        ("annotations", "queryabletopics.io/partitions", "many"),
        ("annotations", "queryabletopics.io/spec-hash", None),
    ],
)
def test_invalid_config_map_is_refused(where: str, key: str, text: str | None) -> None:
    """An invalid ConfigMap is never taken for a record."""
    live: Any = copy.deepcopy(config_map(view(), 1, record()))
    holder = live["data"] if where == "data" else live["metadata"]["annotations"]
    holder.pop(key)
    if text is not None:
        holder[key] = text

    with pytest.raises(ValueError, match="ConfigMap users-r1"):
        record_of(live)


@pytest.mark.parametrize("key", ["data", "annotations"])
def test_edited_config_map_is_refused(key: str) -> None:
    """An edited ConfigMap is refused although it can be parsed: its placement could omit an existing replica."""
    live: Any = copy.deepcopy(config_map(view(), 1, record()))
    holder = live["data"] if key == "data" else live["metadata"]["annotations"]
    for name, there in [(name, there) for name, there in holder.items() if name != WANTED_ANNOTATION]:
        holder[name] = f"{there} "
        with pytest.raises(ValueError, match="ConfigMap users-r1"):
            record_of(live)
        holder[name] = there
    record_of(live)


def test_placement_with_other_partitions_is_refused() -> None:
    """A record places exactly its own partitions."""
    with pytest.raises(ValueError, match="ConfigMap users-r1"):
        record_of(config_map(view(), 1, record(partitions=5)))


def test_empty_config_map_is_refused() -> None:
    """An emptied ConfigMap is invalid, too."""
    with pytest.raises(ValueError, match="ConfigMap users-r1"):
        record_of({"metadata": {"name": "users-r1"}})


def test_largest_view_fits() -> None:
    """With the longest spec, 1 000 nodes and 5 000 partitions the ConfigMap stays within 1 MiB."""
    largest = view(podTemplate={"annotations": {"a": "x" * (SPEC_CHARACTERS_MAX - 1500)}})
    addresses = [
        f"http://{'n' * 40}-r1-{i}.{'n' * 40}-r1.{'s' * 63}.svc.cluster.local:8080" for i in range(1000)
    ]
    serving = tuple((p % 1000, (p + 1) % 1000, (p + 2) % 1000) for p in range(5000))
    placement = Placement(1, "a", tuple(addresses), serving, ((),) * 5000)
    template = {"metadata": largest.raw["podTemplate"], "spec": {}}
    written = record(spec=largest.raw, placement=placement, template=template, partitions=5000)

    assert sum(map(len, config_map(largest, 1, written)["data"].values())) < 1_000_000
