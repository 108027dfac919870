"""Test the effect of each field's change, and the hashes."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from functools import reduce
from operator import getitem
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from queryable_app.local.resource_file import crd
from queryable_app.wire.disk_format import FORMAT_VERSION
from queryable_operator.spec.changes import CHANGES, Change, effective_spec, roll_hash, spec_hash
from queryable_operator.spec.defaults import DEFAULTS, with_defaults
from tests.support.view import FULL

BASE: Mapping[str, Any] = with_defaults(FULL)


def leaves(schema: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield every field that is no object of further known fields."""
    for name, field in schema["properties"].items():
        below = f"{path}.{name}" if path else name
        if "properties" in field:
            yield from leaves(field, below)
        else:
            yield below, field


LEAVES = dict(leaves(crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]))


def rows_of(path: str) -> list[str]:
    return [row for row in CHANGES if path == row or path.startswith(f"{row}.")]


def with_field(spec: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(dict(spec))
    *parents, name = path.split(".")
    holder = changed
    for parent in parents:
        holder = holder.setdefault(parent, {})
    holder[name] = value
    return changed


def hashes(spec: Mapping[str, Any]) -> tuple[str, str]:
    return spec_hash(spec, 12), roll_hash(spec, "node:1", "digest")


def test_every_field_has_one_effect() -> None:
    """Each field is in the table, or below one that is."""
    assert {path: rows_of(path) for path in LEAVES if len(rows_of(path)) != 1} == {}


def test_every_row_names_a_field() -> None:
    """The table has no row for a missing field."""
    assert [row for row in CHANGES if not any(row in rows_of(path) for path in LEAVES)] == []


def class_of(path: str) -> Change:
    return CHANGES[rows_of(path)[0]]


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        (
            Change.PATCH,
            "replicas standbyReplicas read storage.size service networkPolicy rollout replaceAfter onPartitionsChanged "
            "deletionPolicy paused suspended ingest.executors",
        ),
        (
            Change.ROLL,
            "kafka.secretRef kafka.config auth tls storage.highWaterPercent image podTemplate onDataLoss "
            "ingest.mode ingest.batch ingest.trigger ingest.maxOffsetsPerTrigger ingest.driverMemory",
        ),
        (
            Change.REVISION,
            "kafka.bootstrapServers topic key value onBadRecord partitioner transform view serve redeployNonce",
        ),
        (Change.REJECT, "storage.storageClassName storage.ephemeral"),
    ],
)
def test_effects_are_as_documented(change: Change, fields: str) -> None:
    """The effect of a change is a promise."""
    assert {path for path, is_of in CHANGES.items() if is_of is change} == set(fields.split())


@pytest.mark.parametrize("path", sorted(LEAVES))
@given(value=st.integers(1000, 2000) | st.text(min_size=1, max_size=5))
@settings(max_examples=10)
def test_change_affects_its_own_hash_only(path: str, value: Any) -> None:
    """PATCH and REJECT change no hash, ROLL one, and REVISION the other."""
    assume(with_field(BASE, path, value) not in (BASE, with_field(BASE, path, DEFAULTS.get(path))))
    before, after = hashes(BASE), hashes(with_field(BASE, path, value))
    changed = (before[0] != after[0], before[1] != after[1])

    match class_of(path):
        case Change.REVISION:
            assert changed == (True, False)
        case Change.ROLL:
            assert changed == (False, path != "image")  # the image that is used counts, not what names it
        case _:
            assert changed == (False, False)


@pytest.mark.parametrize("path", sorted(LEAVES))
def test_effective_spec_keeps_what_the_revision_was_made_of(path: str) -> None:
    """A revision takes over every change except those that would make another revision."""
    new = with_field(BASE, path, 1234)
    follows = effective_spec(BASE, new)

    kept = class_of(path) in (Change.REVISION, Change.REJECT)
    assert follows == (BASE if kept else new)


@pytest.mark.parametrize("path", sorted(LEAVES))
def test_effective_spec_has_the_revisions_hash(path: str) -> None:
    """A revision's own hash never changes with the resource."""
    new = with_field(BASE, path, 1234)

    assert spec_hash(effective_spec(BASE, new), 12) == spec_hash(BASE, 12)
    assert roll_hash(effective_spec(BASE, new), "i", "") == roll_hash(new, "i", "")


def test_removed_field_stays_only_if_the_revision_was_made_of_it() -> None:
    """A removed field stays in the effective spec only if the revision was built from it."""
    old = {
        "topic": "a",
        "transform": {"sql": "x"},
        "kafka": {"bootstrapServers": "b", "secretRef": {"name": "s"}},
    }
    new = {"topic": "a", "kafka": {"bootstrapServers": "c"}}

    assert effective_spec(old, new) == {
        "topic": "a",
        "transform": {"sql": "x"},
        "kafka": {"bootstrapServers": "b"},
    }


def test_stated_defaults_change_no_hash() -> None:
    """A release that adds a field, or fills one in, restarts nothing."""
    small = {"kafka": {"bootstrapServers": "kafka:9092"}, "topic": "users"}

    assert hashes(with_defaults(small)) == hashes(small)


@pytest.mark.parametrize("path", [p for p, d in DEFAULTS.items() if not isinstance(d, dict)])
def test_each_default_can_be_left_out(path: str) -> None:
    """Each field with a default has the same hashes with and without it."""
    stated = with_field({"kafka": {"bootstrapServers": "kafka:9092"}, "topic": "users"}, path, DEFAULTS[path])
    left_out = copy.deepcopy(stated)
    *parents, name = path.split(".")
    del reduce(getitem, parents, left_out)[name]

    assert hashes(stated) == hashes(left_out)


def test_order_of_fields_changes_no_hash() -> None:
    """A resource with reordered fields is the same."""
    assert hashes(dict(reversed(list(BASE.items())))) == hashes(BASE)


def test_nodes_of_one_revision_speak_tls_or_none_does() -> None:
    """TLS that is added or removed makes a revision, and the pods of the old one stay as they are."""
    with_tls, without = BASE, {name: value for name, value in BASE.items() if name != "tls"}

    assert hashes(with_tls)[0] != hashes(without)[0]
    assert effective_spec(with_tls, without) == with_tls
    assert effective_spec(without, with_tls) == without
    assert spec_hash({**without, "tls": {}}, 12) == spec_hash(with_tls, 12)


def test_unknown_field_makes_a_revision() -> None:
    """A field that the table lacks costs a hydration, not correctness."""
    assert spec_hash({**BASE, "novel": 1}, 12) != spec_hash(BASE, 12)


def test_partitions_and_disk_format_make_a_revision() -> None:
    """A grown topic, and a release with another disk format, make a new revision."""
    assert len({spec_hash(BASE, 12), spec_hash(BASE, 13), spec_hash(BASE, 12, FORMAT_VERSION + 1)}) == 3


def test_image_and_secret_restart_pods() -> None:
    """Another image and another content of the Kafka Secret restart one pod after the other."""
    assert len({roll_hash(BASE, "a", "1"), roll_hash(BASE, "b", "1"), roll_hash(BASE, "a", "2")}) == 3


def test_hashes_are_stable() -> None:
    """An upgraded operator finds the earlier hashes. Change these figures only with the disk format."""
    small = {"kafka": {"bootstrapServers": "kafka:9092"}, "topic": "users"}

    assert (spec_hash(small, 12, 1), roll_hash(small, "node:1", "")) == (
        "716f60955a966350",
        "ad6440d0d334de60",
    )
