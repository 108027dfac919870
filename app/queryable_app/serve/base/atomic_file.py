"""Write the small files that a node keeps beside its stores."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    """Replace the file in one step: a reader finds the old text or the new one, also after the process was killed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.new")
    new.write_text(text)
    os.replace(new, path)
