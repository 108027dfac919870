"""Damage a store as a bad disk does: change bytes in the middle of its rows."""

from __future__ import annotations

from pathlib import Path

_BYTES = 64


def damage_rows(store: Path) -> None:
    """Change rows in place, so that an open store and its checkpoints have the damage too. Flush first: only rows in files can
    be damaged.
    """
    largest = max(store.glob("*.sst"), key=lambda file: file.stat().st_size)
    with largest.open("r+b") as file:
        file.seek(largest.stat().st_size // 2)
        before = file.read(_BYTES)
        file.seek(-len(before), 1)
        file.write(bytes(byte ^ 0xFF for byte in before))
