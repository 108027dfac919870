"""Small files that a node keeps beside its stores."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    """Whole or not at all: whoever reads it, also after a kill, finds what was there before or what is there now."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.new")
    new.write_text(text)
    os.replace(new, path)
