"""Read the blocks of code of a page, and the commands in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


def commands(page: Path) -> Iterator[list[str]]:
    """Yield the words of each command, without the lines of a here-document."""
    for block in blocks(page, "sh"):
        text = re.sub(r"(<<'EOF')\n.*?\nEOF\n", r"\1\n", block, flags=re.DOTALL)
        for line in re.sub(r"\\\n|(?<=\{)\n|(?<=,)\n", " ", text).splitlines():
            if words := shlex.split(line, comments=True):
                yield words
