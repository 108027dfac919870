"""The files in `tests/golden`: JSON values that every door must judge alike, and contributions in both languages."""

from __future__ import annotations

import decimal
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from queryable_app.wire.contributions import ABSENT, Decimal

_FILES: Final = Path(__file__).parents[1] / "golden"


def json_values(kind: str) -> list[bytes]:
    """Return the texts of a kind, `good` or `bad`."""
    cases: list[list[Any]] = json.loads((_FILES / "json_values.json").read_text())[kind]
    return [b"".join(_part(part) for part in parts) for parts in cases]


@dataclass(frozen=True)
class GoldenContribution:
    types: str
    filtered: str
    event_ms: int
    inputs: list[Any]
    """As in the file."""

    encoded: bytes


def contributions() -> list[GoldenContribution]:
    cases = json.loads((_FILES / "contributions.json").read_text())["cases"]
    return [
        GoldenContribution(
            case["types"], case["filtered"], case["event_ms"], case["inputs"], bytes.fromhex(case["hex"])
        )
        for case in cases
    ]


def contribution_inputs(types: str, inputs: list[Any]) -> list[Any]:
    """Return a case's inputs as wire/contributions.py has them."""
    return [_input(type_, value) for type_, value in zip(types, inputs, strict=True)]


def _input(type_: str, value: Any) -> Any:
    if value == {"absent": True}:
        return ABSENT
    if value is None:
        return None
    match type_:
        case "-":
            return 2
        case "d" | "f":
            return float(value)
        case "s":
            return value.encode()
        case "x":
            return bytes.fromhex(value["hex"])
        case "n":
            sign, digits, exponent = decimal.Decimal(value).as_tuple()
            assert isinstance(exponent, int)
            unscaled = int("".join(map(str, digits)))
            return Decimal(-unscaled if sign else unscaled, -exponent)
        case "b":
            return int(value)
    return value


def shortened(text: bytes) -> str:
    """Name a case in a test's output."""
    return ascii(text if len(text) < 40 else text[:20] + b".." + text[-8:])[2:-1]


def _part(part: Any) -> bytes:
    if isinstance(part, str):
        return part.encode()
    if isinstance(part, dict):
        return bytes.fromhex(part["hex"])
    text, times = part
    return bytes(text.encode() * times)
