"""Check single fields of a resource's `spec`, for the files that parse it."""

from __future__ import annotations

import re
from typing import Any, Final, get_args

_DURATION: Final = re.compile(r"([0-9]{1,9})(ms|s|m|h|d)")
_DURATION_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class SpecError(Exception):
    """Report a wrong field; the message begins with its path."""


def duration_ms(text: str, path: str) -> int:
    """Return a duration in milliseconds."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise SpecError(
            f"{path}: {text!r} is not a duration; write a number and a unit, like 500ms, 30s, 5m, 12h or 7d"
        )
    return int(match[1]) * _DURATION_MS[match[2]]


def whole(value: Any, highest: int, path: str) -> int:
    """Return the value, which must be a whole number from 1 to `highest`."""
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= highest:
        raise SpecError(f"{path}: write a whole number from 1 to {highest}")
    return value


def one_of(literal: Any, value: Any, path: str) -> Any:
    """Return the value, which must be one that the Literal type names."""
    allowed = get_args(literal)
    if value not in allowed:
        raise SpecError(f"{path}: {value!r} is not in this version; use one of {', '.join(allowed)}")
    return value
