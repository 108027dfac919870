"""Run a thread during a block."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def running_thread(target: Callable[[threading.Event], object]) -> Iterator[None]:
    """Run the function in a thread with an event that is set at the end of the block, and wait for its return."""
    stop = threading.Event()
    thread = threading.Thread(target=target, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
