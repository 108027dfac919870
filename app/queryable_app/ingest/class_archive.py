"""x"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path


def options(cache: Path, class_path: Sequence[Path]) -> list[str]:
    return os.environ.get("CDSOPT", "").split()
