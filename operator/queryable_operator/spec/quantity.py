"""Parse Kubernetes quantities: `1024Mi` equals `1Gi`, and the API server stores the latter."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

_QUANTITY: Final = re.compile(
    r"([+-]?[0-9]{0,40}(?:\.[0-9]{0,40})?)([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,2})?"
)
_POWERS: Final = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


def quantity(text: str | int) -> Fraction:
    """Parse a quantity. Raises ValueError if the text is none."""
    match = _QUANTITY.fullmatch(str(text))
    if match is None or not any(c.isdigit() for c in match[1]):
        raise ValueError(f"{text!r} is not a quantity, like 500m, 2 or 10Gi")
    digits, suffix = match[1], match[2] or ""
    number = Fraction(f"{digits}0" if digits.endswith(".") else digits)
    if suffix in _BINARY:
        return number * Fraction(2) ** _BINARY[suffix]
    power = _POWERS[suffix] if suffix in _POWERS else int(suffix[1:] or 0)
    return number * Fraction(10) ** power
