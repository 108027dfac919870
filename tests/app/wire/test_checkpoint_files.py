"""Test manifests of checkpoints: what is refused, what remains to fetch, and the rate limit."""

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
def test_manifest_survives_json(manifest: Manifest) -> None:
    """A manifest is the same after it was written and parsed."""
    assert Manifest.from_json(manifest.to_json()) == manifest


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../p0001", "a/b", "/etc/passwd", ".hidden", "a\0b", "a\n", "x" * 200, "C:\\a", 5, None],
)
def test_name_that_is_no_plain_file_is_refused(name: object) -> None:
    """A manifest never names a file outside of the replica's directory."""
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
def test_malformed_manifest_is_refused(change: dict[str, Any]) -> None:
    """Every field has a type and bounds."""
    raw = json.loads(Manifest("0" * 16, "a", 0, 1, 1, (CURRENT,)).to_json())

    with pytest.raises(ManifestError):
        Manifest.from_json(json.dumps(raw | change))


@given(text=st.text() | st.binary() | st.recursive(st.none() | st.integers(), st.lists).map(json.dumps))
def test_other_documents_raise_the_same_error(text: str | bytes) -> None:
    """Any document that is no manifest or progress raises ManifestError."""
    for read in (Manifest.from_json, CheckpointInProgress.from_json):
        with pytest.raises(ManifestError):
            read(text)


@pytest.mark.parametrize(
    "change", [{"lease": "../../x"}, {"lease": 5}, {"bytes_read": -1}, {"bytes_read": "0"}], ids=str
)
def test_malformed_progress_is_refused(change: dict[str, Any]) -> None:
    """A lease is checked, because it becomes a part of a path."""
    made = CheckpointInProgress("0" * 16, 17)
    assert CheckpointInProgress.from_json(made.to_json()) == made

    with pytest.raises(ManifestError):
        CheckpointInProgress.from_json(json.dumps(json.loads(made.to_json()) | change))


@given(manifest=manifests(), data=st.data())
def test_fetched_bytes_are_not_fetched_again(manifest: Manifest, data: st.DataObject) -> None:
    """A file continues after its fetched bytes, and starts over if it is too large."""
    sizes = data.draw(
        st.dictionaries(st.sampled_from([f.name for f in manifest.files]), st.integers(0, 1 << 40))
    )

    parts = files_to_fetch(manifest, sizes)

    assert {part.file for part in parts} == set(manifest.files)
    for part in parts:
        size = sizes.get(part.file.name, 0)
        assert part.start == (size if size <= part.file.size else 0)


@given(manifest=manifests())
def test_longest_fetch_is_first(manifest: Manifest) -> None:
    """The file with the most missing bytes comes first, so that no long fetch is alone at the end."""
    lengths = [part.file.size - part.start for part in files_to_fetch(manifest, {})]

    assert lengths == sorted(lengths, reverse=True)


@given(manifest=manifests())
def test_file_with_another_digest_is_another_file(manifest: Manifest) -> None:
    """Files of one name are identical only if their sizes and digests are equal."""
    changed = tuple(replace(file, digest=file.digest[::-1] + "") for file in manifest.files)
    others = replace(manifest, files=changed)

    identical = identical_files(manifest, others)

    assert identical == {file.name for file in manifest.files if file.digest == file.digest[::-1]}
    assert identical_files(manifest, replace(manifest, lease="1" * 16)) == {
        file.name for file in manifest.files
    }


@given(
    rate=st.integers(1, 1000),
    requests=st.lists(st.tuples(st.floats(0, 10), st.integers(1, 500)), min_size=1, max_size=30),
)
def test_rate_is_never_exceeded(rate: int, requests: list[tuple[float, int]]) -> None:
    """Between any two sends, no more bytes are sent than the rate allows, the last send excepted."""
    budget, now, sent = RateBudget(rate), 0.0, []
    for pause, size in requests:
        now += pause
        sent.append((now + budget.take(size, now), size))

    for first in range(len(sent)):
        bytes_before = 0
        for at, size in sent[first:]:
            assert bytes_before <= rate * (at - sent[first][0]) + 1e-3
            bytes_before += size


def test_single_send_does_not_wait() -> None:
    """A send waits only for the sends before it, and unused bytes are not saved."""
    budget = RateBudget(100)

    assert (budget.take(50, 7.0), budget.wait(7.0), budget.wait(7.5), budget.take(1, 9.0)) == (
        0.0,
        0.5,
        0.0,
        0.0,
    )
