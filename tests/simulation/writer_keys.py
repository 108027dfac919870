"""Name the keys that the producers of a world write."""

from __future__ import annotations

STABLE_KEYS = 12  # never deleted
CHANGING_KEYS = 10


def stable_key(number: int) -> bytes:
    """Return a key that is never deleted; half of them are a prefix of another."""
    return b"stable-%02d%b" % (number // 2, b"-more" if number % 2 else b"")


def changing_key(number: int) -> bytes:
    return b"changing-%02d" % number


ALL_KEYS = [*map(stable_key, range(STABLE_KEYS)), *map(changing_key, range(CHANGING_KEYS))]
