"""Manifests of copies that move from node to node: what is believed, what is left, how fast it may go."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryable_app.wire.checkpoint_files import (
    CheckpointFile,
    CheckpointInProgress,
    Manifest,
    ManifestError,
    RateBudget,
    files_to_fetch,
    identical_files,
)

DIGESTS = st.integers(0, 2**256 - 1).map(lambda number: f"{number:064x}")
NAMES = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,20}", fullmatch=True).filter(lambda n: n != "CURRENT")
FILES = st.builds(CheckpointFile, NAMES, st.integers(0, 1 << 39), DIGESTS)
CURRENT = CheckpointFile("CURRENT", 16, "0" * 64)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    files = draw(st.lists(FILES, max_size=8, unique_by=lambda file: file.name))
    return Manifest("0" * 16, "tests.users.r1", 3, draw(st.integers(-1, 1 << 62)), 1, (CURRENT, *files))


@given(manifest=manifests())
def test_a_manifest_survives_the_wire(manifest: Manifest) -> None:
    """What one node says is what the other one reads."""
    assert Manifest.from_json(manifest.to_json()) == manifest


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../p0001", "a/b", "/etc/passwd", ".hidden", "a\0b", "a\n", "x" * 200, "C:\\a", 5, None],
)
def test_a_name_that_is_no_plain_file_is_refused(name: object) -> None:
    """A manifest never leads to a file outside of the copy's own directory."""
    raw = json.loads(Manifest("0" * 16, "a", 0, 1, 1, (CURRENT,)).to_json())
    raw["files"].append({"name": name, "size": 1, "digest": "0" * 64})

    with pytest.raises(ManifestError):
        Manifest.from_json(json.dumps(raw))


@pytest.mark.parametrize(
    "change",
    [
        {"lease": "../../x"},
        {"lease": None},
        {"partition": -1},
        {"partition": True},
        {"partition": "0"},
        {"position": -2},
        {"position": 1 << 63},
        {"format": 1.0},
        {"application_id": 7},
        {"files": []},
        {"files": [{"name": "CURRENT", "size": -1, "digest": "0" * 64}]},
        {"files": [{"name": "CURRENT", "size": 1 << 50, "digest": "0" * 64}]},
        {"files": [{"name": "CURRENT", "size": 1, "digest": "0" * 63}]},
        {"files": [{"name": "CURRENT", "size": 1, "digest": "0" * 64}] * 2},
        {"files": 3},
        {"files": ["CURRENT"]},
    ],
    ids=str,
)
def test_what_no_node_would_say_is_refused(change: dict[str, Any]) -> None:
    """Every field has its kind and its bounds."""
    raw = json.loads(Manifest("0" * 16, "a", 0, 1, 1, (CURRENT,)).to_json())

    with pytest.raises(ManifestError):
        Manifest.from_json(json.dumps(raw | change))


@given(text=st.text() | st.binary() | st.recursive(st.none() | st.integers(), st.lists).map(json.dumps))
def test_anything_else_is_refused_in_the_same_way(text: str | bytes) -> None:
    """There is one exception for whatever is no manifest, and no word of one that is being made."""
    for read in (Manifest.from_json, CheckpointInProgress.from_json):
        with pytest.raises(ManifestError):
            read(text)


@pytest.mark.parametrize(
    "change", [{"lease": "../../x"}, {"lease": 5}, {"bytes_read": -1}, {"bytes_read": "0"}], ids=str
)
def test_progress_that_no_node_would_state_is_refused(change: dict[str, Any]) -> None:
    """A lease becomes a part of a path, so it is looked at before it is used."""
    made = CheckpointInProgress("0" * 16, 17)
    assert CheckpointInProgress.from_json(made.to_json()) == made

    with pytest.raises(ManifestError):
        CheckpointInProgress.from_json(json.dumps(json.loads(made.to_json()) | change))


@given(manifest=manifests(), data=st.data())
def test_every_byte_is_fetched_once_or_there(manifest: Manifest, data: st.DataObject) -> None:
    """What is left and what is there make the file, and a file that is too large is begun anew."""
    sizes = data.draw(
        st.dictionaries(st.sampled_from([f.name for f in manifest.files]), st.integers(0, 1 << 40))
    )

    parts = files_to_fetch(manifest, sizes)

    assert {part.file for part in parts} == set(manifest.files)
    for part in parts:
        size = sizes.get(part.file.name, 0)
        assert part.start == (size if size <= part.file.size else 0)


@given(manifest=manifests())
def test_the_longest_part_is_fetched_first(manifest: Manifest) -> None:
    """So that not one file is left at the end while nothing else is to be done."""
    lengths = [part.file.size - part.start for part in files_to_fetch(manifest, {})]

    assert lengths == sorted(lengths, reverse=True)


@given(manifest=manifests())
def test_only_the_same_bytes_are_kept(manifest: Manifest) -> None:
    """A file of the same name with another size or digest is another file."""
    changed = tuple(replace(file, digest=file.digest[::-1] + "") for file in manifest.files)
    others = replace(manifest, files=changed)

    kept = identical_files(manifest, others)

    assert kept == {file.name for file in manifest.files if file.digest == file.digest[::-1]}
    assert identical_files(manifest, replace(manifest, lease="1" * 16)) == {
        file.name for file in manifest.files
    }


@given(
    rate=st.integers(1, 1000),
    asked=st.lists(st.tuples(st.floats(0, 10), st.integers(1, 500)), min_size=1, max_size=30),
)
def test_no_span_of_time_has_more_than_its_bytes(rate: int, asked: list[tuple[float, int]]) -> None:
    """Between any two sends there go no more bytes than the rate allows for that time, the last send apart."""
    budget, now, sent = RateBudget(rate), 0.0, []
    for pause, size in asked:
        now += pause
        sent.append((now + budget.take(size, now), size))

    for first in range(len(sent)):
        bytes_before = 0
        for at, size in sent[first:]:
            assert bytes_before <= rate * (at - sent[first][0]) + 1e-3
            bytes_before += size


def test_who_is_alone_does_not_wait() -> None:
    """Bytes that were not used before are not saved up, and nothing waits without a reason."""
    budget = RateBudget(100)

    assert (budget.take(50, 7.0), budget.wait(7.0), budget.wait(7.5), budget.take(1, 9.0)) == (
        0.0,
        0.5,
        0.0,
        0.0,
    )
