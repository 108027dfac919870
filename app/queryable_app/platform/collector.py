"""Keep Python's garbage collector away from what lives as long as the process."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def long_lived() -> Iterator[None]:
    """Import modules inside. The collector neither runs meanwhile, which takes a third of the time of large imports, nor looks
    at what they created afterwards."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
