"""The documents as tests read them: their blocks of code, and the commands in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


def commands(page: Path) -> Iterator[list[str]]:
    """The words of each command; those of a here-document are its input and left out."""
    for block in blocks(page, "sh"):
        text = re.sub(r"(<<'EOF')\n.*?\nEOF\n", r"\1\n", block, flags=re.DOTALL)
        for line in re.sub(r"\\\n|(?<=\{)\n|(?<=,)\n", " ", text).splitlines():
            if words := shlex.split(line, comments=True):
                yield words
