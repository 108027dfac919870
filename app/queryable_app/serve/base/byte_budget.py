"""A number of bytes that many requests share. A request takes the size of what it keeps first, and gives it back at its end."""

from __future__ import annotations


class ByteBudget:
    """Use it from one event loop."""

    __slots__ = ("bytes_max", "taken")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.taken = 0

    def take(self, size: int) -> bool:
        """Take `size` bytes if they are left. False takes nothing."""
        if self.taken + size > self.bytes_max:
            return False
        self.taken += size
        return True

    def take_over_limit(self, size: int) -> None:
        """Count bytes that are there whether they were left or not."""
        self.taken += size

    def release(self, size: int) -> None:
        self.taken -= size
