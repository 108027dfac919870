"""Check values from another process's JSON: return the value, or raise Malformed, which names its place.

Strategy: a reader takes a body field by field, each with its check. A missing or wrong field is refused. An unknown field is
ignored, because the sender may be of a newer release. So a new field must be one without which the body keeps its meaning;
anything else needs a new path.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable
from typing import Any, Final, TypeVar

from queryable_app.errors import shown

T = TypeVar("T")
Check = Callable[[Any], T]

OFFSET_MAX: Final = 2**63 - 1
PARTITION_MAX: Final = 2**31 - 1


class Malformed(ValueError):
    """Report a missing or wrong field; the message begins with it."""


def field(raw: Any, name: str, check: Check[T]) -> T:
    """Return a checked field of an object."""
    if not isinstance(raw, dict):
        raise Malformed(f"{shown(raw)} is not an object")
    if name not in raw:
        raise Malformed(f"{name} is missing")
    try:
        return check(raw[name])
    except ValueError as error:
        raise Malformed(f"{name}: {error}") from None


def whole(low: int, high: int) -> Check[int]:
    def check(value: Any) -> int:
        if type(value) is not int or not low <= value <= high:  # True is an int
            raise Malformed(f"{shown(value)} is not a whole number from {low} to {high}")
        return value

    return check


partition: Final = whole(0, PARTITION_MAX)
offset: Final = whole(-1, OFFSET_MAX)


def flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise Malformed(f"{shown(value)} is not true or false")
    return value


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise Malformed(f"{shown(value)} is not text")
    return value


def matching(pattern: re.Pattern[str]) -> Check[str]:
    def check(value: Any) -> str:
        if not isinstance(value, str) or pattern.fullmatch(value) is None:
            raise Malformed(f"{shown(value)} is not allowed")
        return value

    return check


def base64_bytes(value: Any) -> bytes:
    return b64decode(text(value), validate=True)


def optional(check: Check[T]) -> Check[T | None]:
    return lambda value: None if value is None else check(value)


def list_of(check: Check[T]) -> Check[list[T]]:
    def check_all(value: Any) -> list[T]:
        if not isinstance(value, list):
            raise Malformed(f"{shown(value)} is not a list")
        return [check(element) for element in value]

    return check_all


def by_partition(check: Check[T]) -> Check[dict[int, T]]:
    """Check an object whose names are partitions in decimal digits."""

    def check_all(value: Any) -> dict[int, T]:
        if not isinstance(value, dict):
            raise Malformed(f"{shown(value)} is not an object")
        return {_partition_name(name): check(member) for name, member in value.items()}

    return check_all


def _partition_name(name: str) -> int:
    if not (name.isascii() and name.isdigit() and len(name) <= 10):
        raise Malformed(f"{shown(name)} is not a partition")
    return partition(int(name))
