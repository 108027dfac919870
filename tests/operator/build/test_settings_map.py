"""A revision's ConfigMap, written and read again."""

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
)


@given(RECORDS)
def test_a_record_comes_back(written: RevisionRecord) -> None:
    """The operator reads the very record that it wrote."""
    assert record_of(config_map(view(), 1, written)) == written


def test_nodes_can_read_what_they_follow() -> None:
    """The spec and the placement are in the files that nodes read, in their own format."""
    data = config_map(view(), 1, record())["data"]

    assert parse_spec_json(data["spec.json"]) == view(**FULL).spec
    assert Placement.from_json(data["placement.json"]) == PLACEMENT


def test_the_format_on_disk_stays_the_revisions() -> None:
    """An operator that writes another format does not say so of an older revision."""
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
def test_a_broken_map_is_told(where: str, key: str, text: str | None) -> None:
    """What somebody broke is never taken for a record."""
    live: Any = copy.deepcopy(config_map(view(), 1, record()))
    holder = live["data"] if where == "data" else live["metadata"]["annotations"]
    holder.pop(key)
    if text is not None:
        holder[key] = text

    with pytest.raises(ValueError, match="ConfigMap users-r1"):
        record_of(live)


@pytest.mark.parametrize("key", ["data", "annotations"])
def test_a_map_that_somebody_edited_is_told(key: str) -> None:
    """Also when it could be read: a copy may be where the edited one does not name it."""
    live: Any = copy.deepcopy(config_map(view(), 1, record()))
    holder = live["data"] if key == "data" else live["metadata"]["annotations"]
    for name, there in [(name, there) for name, there in holder.items() if name != WANTED_ANNOTATION]:
        holder[name] = f"{there} "
        with pytest.raises(ValueError, match="ConfigMap users-r1"):
            record_of(live)
        holder[name] = there
    record_of(live)


def test_a_placement_of_other_partitions_is_told() -> None:
    """A record never says that it places more partitions than it does."""
    with pytest.raises(ValueError, match="ConfigMap users-r1"):
        record_of(config_map(view(), 1, record(partitions=5)))


def test_a_map_without_data_is_told() -> None:
    """A map that was emptied is broken as well."""
    with pytest.raises(ValueError, match="ConfigMap users-r1"):
        record_of({"metadata": {"name": "users-r1"}})


def test_the_largest_view_fits() -> None:
    """With the longest spec, 1 000 nodes and 5 000 partitions a map is within the MiB that a cluster takes."""
    largest = view(podTemplate={"annotations": {"a": "x" * (SPEC_CHARACTERS_MAX - 1500)}})
    addresses = [
        f"http://{'n' * 40}-r1-{i}.{'n' * 40}-r1.{'s' * 63}.svc.cluster.local:8080" for i in range(1000)
    ]
    serving = tuple((p % 1000, (p + 1) % 1000, (p + 2) % 1000) for p in range(5000))
    placement = Placement(1, "a", tuple(addresses), serving, ((),) * 5000)
    template = {"metadata": largest.raw["podTemplate"], "spec": {}}
    written = record(spec=largest.raw, placement=placement, template=template, partitions=5000)

    assert sum(map(len, config_map(largest, 1, written)["data"].values())) < 1_000_000
