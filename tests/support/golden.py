"""The JSON values that every door must judge alike: `tests/golden/json_values.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

_FILE: Final = Path(__file__).parents[1] / "golden" / "json_values.json"


def json_values(kind: str) -> list[bytes]:
    """Return the texts of a kind, `good` or `bad`."""
    cases: list[list[Any]] = json.loads(_FILE.read_text())[kind]
    return [b"".join(_part(part) for part in parts) for parts in cases]


def shortened(text: bytes) -> str:
    """Name a case in a test's output."""
    return ascii(text if len(text) < 40 else text[:20] + b".." + text[-8:])[2:-1]


def _part(part: Any) -> bytes:
    if isinstance(part, str):
        return part.encode()
    if isinstance(part, dict):
        return bytes.fromhex(part["hex"])
    text, times = part
    return bytes(text.encode() * times)
