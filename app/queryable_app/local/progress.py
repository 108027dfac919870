"""What a person sees of a run: a line for everything that is done, and a moving one for what is being waited for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console

_PLAIN_INTERVAL_SECONDS: Final = 5.0

Show = Callable[[str], None]


class Progress:
    """On a terminal the moving line is a spinner; elsewhere it is a plain line now and then."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def say(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def waiting(self, what: str) -> Iterator[Show]:
        """Shows what is being waited for until the block is left; the value changes the line."""
        if self._console.is_terminal:
            with self._console.status(what) as status:
                yield status.update
            return
        self.say(f"{what} ...")
        yield _rarely(self.say, what)


def _rarely(say: Show, said: str) -> Show:
    last = (said, time.monotonic())

    def show(line: str) -> None:
        nonlocal last
        if line != last[0] and time.monotonic() - last[1] >= _PLAIN_INTERVAL_SECONDS:
            say(f"{line} ...")
            last = (line, time.monotonic())

    return show
