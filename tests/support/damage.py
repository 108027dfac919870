"""What a bad disk does to a store: bytes in the middle of its rows are others than were written."""

from __future__ import annotations

from pathlib import Path

_BYTES = 64


def damage_rows(store: Path) -> None:
    """In place, so that a store which is open and its checkpoints have the damage too. Only rows that are in files can be
    damaged: flush first."""
    largest = max(store.glob("*.sst"), key=lambda file: file.stat().st_size)
    with largest.open("r+b") as file:
        file.seek(largest.stat().st_size // 2)
        before = file.read(_BYTES)
        file.seek(-len(before), 1)
        file.write(bytes(byte ^ 0xFF for byte in before))
