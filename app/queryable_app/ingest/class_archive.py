"""x"""

from __future__ import annotations
from pathlib import Path
from collections.abc import Sequence
import os


def options(cache: Path, class_path: Sequence[Path]) -> list[str]:
    return os.environ.get("CDSOPT", "").split()
