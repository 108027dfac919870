"""Share a number of bytes between many requests: a request takes the size of what it keeps, and releases it at its end."""

from __future__ import annotations


class ByteBudget:
    """Count bytes against a limit. Use it from one event loop."""

    __slots__ = ("bytes_max", "taken")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.taken = 0

    def take(self, size: int) -> bool:
        """Take `size` bytes and return True, or take nothing and return False if they do not fit."""
        if self.taken + size > self.bytes_max:
            return False
        self.taken += size
        return True

    def take_over_limit(self, size: int) -> None:
        """Count bytes that are in memory already, even beyond the limit."""
        self.taken += size

    def release(self, size: int) -> None:
        self.taken -= size
