"""Every object of six views, whole, as in `golden/`.

After a change that is meant: `WRITE_GOLDEN=1 .venv/bin/pytest tests/operator/test_golden.py`, and read the difference.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.rekeyed import WORDS
from tests.support.view import FULL, objects, view

GOLDEN = Path(__file__).parent / "golden"
SPECS: Mapping[str, Mapping[str, Any]] = {
    "small": {},
    "full": FULL,
    "rekeyed": {"view": WORDS},
    "executors": {"view": WORDS, "ingest": {"executors": 2}},
    "private": {"view": WORDS, "tls": {}},
    "ephemeral": {"storage": {"ephemeral": True, "size": "2Gi"}, "replicas": 2},
}


class _Plain(yaml.SafeDumper):
    """Write YAML without anchors, so that each object can be read by itself."""

    def ignore_aliases(self, data: object) -> bool:
        return True


@pytest.mark.parametrize("name", SPECS)
def test_objects_equal_the_golden_files(name: str) -> None:
    """A change of any applied object shows in a golden file."""
    text = yaml.dump_all(objects(view(**SPECS[name])), Dumper=_Plain, sort_keys=False, width=110)
    file = GOLDEN / f"{name}.yaml"
    if os.environ.get("WRITE_GOLDEN"):
        file.write_text(text)

    assert text == file.read_text()
