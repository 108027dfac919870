"""Define the aggregate functions whose state is a number, a value, or a few of them.

Strategy: a function is a value without data of groups. It makes a state, folds one value into it, and renders the result. The
states here are immutable; `fold` returns the next one. It is called in offset order for each record whose filter is true, with
None for a null. So every replica computes the same state, bit for bit, sums of doubles too. A state whose result would be
wrong, for example a sum beyond 64 bits, has a problem instead of a result. It stays exact inside, so a later record can mend it.
"""

from __future__ import annotations

import struct
from typing import Any, Final, Protocol

from queryable_app.aggregates.values import (
    FIXED,
    decimal_json,
    double_json,
    from_bytes,
    is_less,
    to_bytes,
    value_json,
)
from queryable_app.config.aggregate_spec import AggregateColumn
from queryable_app.wire.contributions import Decimal

_LOW_BITS: Final = (1 << 64) - 1
_LONG_MIN: Final = -(1 << 63)
_LONG_MAX: Final = (1 << 63) - 1
_DIGITS_MAX: Final = 38
_BEYOND_DECIMAL: Final = 10**_DIGITS_MAX
_DIVISION_SCALE: Final = 39  # Spark divides decimals with this scale, and then rounds to that of the result
_COUNT: Final = struct.Struct(">Q")

VARIABLE: Final = "I"
"""The layout of states that are bytes of any length."""
COUNT: Final = "Q"
"""The layout of states that are their only field."""

Fields = tuple[Any, ...]


class Function(Protocol):
    """Compute one column. It is made of the column and the type of its input.

    A state is packed as `layout`, or as bytes if `layout` is VARIABLE.
    """

    layout: str

    def new(self) -> Any:
        """Return the state of a group without records."""

    def fold(self, state: Any, value: Any) -> Any:
        """Return the state with one more value, or with one more null if it is None."""

    def merge(self, earlier: Any, later: Any) -> Any:
        """Return the state of the records of both, of which those of `later` have the higher offsets."""

    def load(self, fields: Any) -> Any:
        """Return the state of unpacked fields, or of bytes."""

    def dump(self, state: Any) -> Any:
        """Return the fields of a state, or its bytes."""

    def render(self, state: Any) -> str:
        """Return the result as JSON: null if there is none."""

    def problem(self, state: Any) -> str | None:
        """Return why the result is missing or not whole."""


class _Base:
    def __init__(self, _column: AggregateColumn, type: str) -> None:
        self._type = type


class _Exact(_Base):
    """Have no problems."""

    def problem(self, _state: Any) -> str | None:
        return None


class Count(_Exact):
    """Count records, or those whose value is not null."""

    layout = COUNT

    def new(self) -> int:
        return 0

    def fold(self, state: int, value: Any) -> int:
        return state if value is None else state + 1

    def merge(self, earlier: int, later: int) -> int:
        return earlier + later

    def load(self, fields: Fields) -> int:
        count: int = fields[0]
        return count

    def dump(self, state: int) -> Fields:
        return (state,)

    def render(self, state: int) -> str:
        return str(state)


class IntegerSum(_Base):
    """Add integers. The state has 128 bits, so 2**64 records cannot overflow it; the result has 64."""

    layout = "BqQ"

    def new(self) -> int | None:
        return None

    def fold(self, state: int | None, value: int | None) -> int | None:
        if value is None:
            return state
        return value if state is None else state + value

    merge = fold

    def load(self, fields: Fields) -> int | None:
        seen, high, low = fields
        return (high << 64) + low if seen else None

    def dump(self, state: int | None) -> Fields:
        return (0, 0, 0) if state is None else (1, state >> 64, state & _LOW_BITS)

    def render(self, state: int | None) -> str:
        return "null" if state is None or self.problem(state) else str(state)

    def problem(self, state: int | None) -> str | None:
        return None if state is None or _LONG_MIN <= state <= _LONG_MAX else "sum beyond 64 bits"


class DoubleSum(_Exact):
    """Add doubles in offset order."""

    layout = "Bd"

    def new(self) -> float | None:
        return None

    def fold(self, state: float | None, value: float | None) -> float | None:
        if value is None:
            return state
        return 0.0 + value if state is None else state + value

    merge = fold

    def load(self, fields: Fields) -> float | None:
        return fields[1] if fields[0] else None

    def dump(self, state: float | None) -> Fields:
        return (0, 0.0) if state is None else (1, state)

    def render(self, state: float | None) -> str:
        return "null" if state is None else double_json(state)


class DecimalSum(_Base):
    """Add decimals exactly. The result has up to 38 digits."""

    layout = VARIABLE

    def new(self) -> Decimal | None:
        return None

    def fold(self, state: Decimal | None, value: Decimal | None) -> Decimal | None:
        if value is None:
            return state
        return value if state is None else _sum(state, value)

    merge = fold

    def load(self, raw: bytes) -> Decimal | None:
        return from_bytes(raw, "n") if raw else None

    def dump(self, state: Decimal | None) -> bytes:
        return b"" if state is None else to_bytes(state, "n")

    def render(self, state: Decimal | None) -> str:
        return "null" if state is None or self.problem(state) else decimal_json(state)

    def problem(self, state: Decimal | None) -> str | None:
        return None if state is None or abs(state.unscaled) < _BEYOND_DECIMAL else "sum beyond 38 digits"


class IntegerAvg(_Exact):
    """Divide the exact sum of integers by their number, with one rounding."""

    layout = "QqQ"

    def new(self) -> tuple[int, int]:
        return 0, 0

    def fold(self, state: tuple[int, int], value: int | None) -> tuple[int, int]:
        return state if value is None else (state[0] + 1, state[1] + value)

    def merge(self, earlier: tuple[int, int], later: tuple[int, int]) -> tuple[int, int]:
        return earlier[0] + later[0], earlier[1] + later[1]

    def load(self, fields: Fields) -> tuple[int, int]:
        count, high, low = fields
        return count, (high << 64) + low

    def dump(self, state: tuple[int, int]) -> Fields:
        count, total = state
        return count, total >> 64, total & _LOW_BITS

    def render(self, state: tuple[int, int]) -> str:
        return double_json(state[1] / state[0]) if state[0] else "null"


class DoubleAvg(_Exact):
    """Divide the sum of doubles in offset order by their number."""

    layout = "Qd"

    def new(self) -> tuple[int, float]:
        return 0, 0.0

    def fold(self, state: tuple[int, float], value: float | None) -> tuple[int, float]:
        return state if value is None else (state[0] + 1, state[1] + value)

    def merge(self, earlier: tuple[int, float], later: tuple[int, float]) -> tuple[int, float]:
        return earlier[0] + later[0], earlier[1] + later[1]

    def load(self, fields: Fields) -> tuple[int, float]:
        return fields[0], fields[1]

    def dump(self, state: tuple[int, float]) -> Fields:
        return state

    def render(self, state: tuple[int, float]) -> str:
        return double_json(state[1] / state[0]) if state[0] else "null"


class DecimalAvg(_Base):
    """Divide the exact sum of decimals by their number. The result has four more decimal places than the values."""

    layout = VARIABLE

    def new(self) -> tuple[int, Decimal]:
        return 0, Decimal(0, 0)

    def fold(self, state: tuple[int, Decimal], value: Decimal | None) -> tuple[int, Decimal]:
        return state if value is None else (state[0] + 1, _sum(state[1], value))

    def merge(self, earlier: tuple[int, Decimal], later: tuple[int, Decimal]) -> tuple[int, Decimal]:
        return earlier[0] + later[0], _sum(earlier[1], later[1])

    def load(self, raw: bytes) -> tuple[int, Decimal]:
        return _COUNT.unpack_from(raw)[0], from_bytes(raw[_COUNT.size :], "n")

    def dump(self, state: tuple[int, Decimal]) -> bytes:
        return _COUNT.pack(state[0]) + to_bytes(state[1], "n")

    def render(self, state: tuple[int, Decimal]) -> str:
        return "null" if not state[0] or self.problem(state) else decimal_json(self._result(state))

    def problem(self, state: tuple[int, Decimal]) -> str | None:
        if abs(state[1].unscaled) >= _BEYOND_DECIMAL:
            return "sum beyond 38 digits"
        if state[0] and abs(self._result(state).unscaled) >= _BEYOND_DECIMAL:
            return "average beyond 38 digits"
        return None

    @staticmethod
    def _result(state: tuple[int, Decimal]) -> Decimal:
        count, (unscaled, scale) = state
        wide = _half_up(unscaled * 10 ** (_DIVISION_SCALE - min(scale, _DIGITS_MAX)), count)
        places = min(_DIGITS_MAX, scale + 4)
        return Decimal(_half_up(wide, 10 ** (_DIVISION_SCALE - places)), places)


class _Kept(_Exact):
    """Keep one value: with its presence, 0 if there was none yet, 1 for a null."""

    def __init__(self, column: AggregateColumn, type: str) -> None:
        super().__init__(column, type)
        fixed = FIXED.get(type)
        self.layout = VARIABLE if fixed is None else "B" + fixed
        self._variable = fixed is None

    def new(self) -> tuple[Any] | None:
        return None

    def load(self, fields: Any) -> tuple[Any] | None:
        if not (presence := fields[0] if fields else 0):
            return None
        if presence == 1:
            return (None,)
        return (from_bytes(fields[1:], self._type) if self._variable else fields[1],)

    def dump(self, state: tuple[Any] | None) -> Any:
        if self._variable:
            if state is None:
                return b""
            return b"\1" if state[0] is None else b"\2" + to_bytes(state[0], self._type)
        return (0, 0) if state is None else (1, 0) if state[0] is None else (2, state[0])

    def render(self, state: tuple[Any] | None) -> str:
        return "null" if state is None or state[0] is None else value_json(state[0], self._type)


class Min(_Kept):
    def fold(self, state: tuple[Any] | None, value: Any) -> tuple[Any] | None:
        if value is None or (state is not None and not is_less(value, state[0], self._type)):
            return state
        return (value,)

    def merge(self, earlier: tuple[Any] | None, later: tuple[Any] | None) -> tuple[Any] | None:
        return earlier if later is None else self.fold(earlier, later[0])


class Max(_Kept):
    def fold(self, state: tuple[Any] | None, value: Any) -> tuple[Any] | None:
        if value is None or (state is not None and not is_less(state[0], value, self._type)):
            return state
        return (value,)

    def merge(self, earlier: tuple[Any] | None, later: tuple[Any] | None) -> tuple[Any] | None:
        return earlier if later is None else self.fold(earlier, later[0])


class First(_Kept):
    """Keep the value of the lowest offset, a null too."""

    def fold(self, state: tuple[Any] | None, value: Any) -> tuple[Any]:
        return (value,) if state is None else state

    def merge(self, earlier: tuple[Any] | None, later: tuple[Any] | None) -> tuple[Any] | None:
        return later if earlier is None else earlier


class Last(_Kept):
    """Keep the value of the highest offset, a null too."""

    def fold(self, _state: tuple[Any] | None, value: Any) -> tuple[Any]:
        return (value,)

    def merge(self, earlier: tuple[Any] | None, later: tuple[Any] | None) -> tuple[Any] | None:
        return earlier if later is None else later


def _sum(left: Decimal, right: Decimal) -> Decimal:
    """Add exactly. The values of a column have one scale; others take the greater one."""
    if left.scale == right.scale:
        return Decimal(left.unscaled + right.unscaled, left.scale)
    scale = max(left.scale, right.scale)
    return Decimal(
        left.unscaled * 10 ** (scale - left.scale) + right.unscaled * 10 ** (scale - right.scale), scale
    )


def _half_up(numerator: int, denominator: int) -> int:
    """Divide and round to the nearest integer, a half away from zero."""
    quotient = (2 * abs(numerator) + denominator) // (2 * denominator)
    return quotient if numerator >= 0 else -quotient
