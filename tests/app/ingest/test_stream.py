"""Tests of how a query finds its start."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from queryable_app.config.topic_spec import parse_spec
from queryable_app.ingest.stream import QueryStart, write_initial_offsets

SPEC = parse_spec({"kafka": {"bootstrapServers": "127.0.0.1:1"}, "topic": "orders"})


def start(positions: dict[int, int], run_dir: Path) -> QueryStart:
    return QueryStart(SPEC, "127.0.0.1:1", 4, positions, 1, run_dir / "rows.sock", "realtime")


def test_offsets_are_where_the_source_looks_for_them(tmp_path: Path) -> None:
    """The source finds the positions in the file in which it would write them itself, in its own layout."""
    write_initial_offsets(tmp_path, start({0: 0, 3: 2**40}, tmp_path))

    written = (tmp_path / "sources/0/0").read_bytes()

    assert written.startswith(b"\0v1\n")  # a byte that an old release reads first, and the layout's version
    assert json.loads(written[4:]) == {"orders": {"0": 0, "3": 2**40}}


@pytest.mark.parametrize("position", [-1, -2])
def test_source_asks_where_a_position_is_no_offset(tmp_path: Path, position: int) -> None:
    """The source itself finds the end or the beginning of a partition, so there is no file."""
    write_initial_offsets(tmp_path, start({0: 7, 1: position}, tmp_path))

    assert list(tmp_path.iterdir()) == []
