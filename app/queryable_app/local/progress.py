"""Show the progress of a run: a line for each finished step, and a changing line for the current one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console

_PLAIN_INTERVAL_SECONDS: Final = 5.0

Show = Callable[[str], None]


class Progress:
    """Print progress. On a terminal the changing line is a spinner; elsewhere it is a plain line every few seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def say(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def waiting(self, what: str) -> Iterator[Show]:
        """Show the current step until the block ends. The function that it yields changes the line."""
        if self._console.is_terminal:
            with self._console.status(what) as status:
                yield status.update
            return
        self.say(f"{what} ...")
        yield _every_few_seconds(self.say, what)


def _every_few_seconds(say: Show, first: str) -> Show:
    last = (first, time.monotonic())

    def show(line: str) -> None:
        nonlocal last
        if line != last[0] and time.monotonic() - last[1] >= _PLAIN_INTERVAL_SECONDS:
            say(f"{line} ...")
            last = (line, time.monotonic())

    return show
