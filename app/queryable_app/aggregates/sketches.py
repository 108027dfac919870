"""Estimate distinct values, quantiles and frequent values of a group, with the sketches of Apache DataSketches.

Strategy: replicas must compute the same state, however the log is cut into slices, but a sketch may depend on when it was stored
and loaded. So the state is a sketch and a buffer of the newest values. A full buffer goes into the sketch at once: the sketch is
loaded, takes the values in offset order, and is stored again. So it is stored and loaded at the same records on every replica.
A read adds the buffer to a copy. Most records cost no more than an entry in the buffer, and a small group has no sketch at all.

The library needs numpy. Only views with such a column load it, when the node starts (`load_library`).
"""

from __future__ import annotations

import importlib
import math
import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cache
from hashlib import blake2b
from heapq import nsmallest
from typing import Any, Final

from queryable_app.aggregates.functions import VARIABLE
from queryable_app.aggregates.values import double_json, from_bytes, to_bytes, value_json
from queryable_app.config.aggregate_spec import AggregateColumn
from queryable_app.wire.contributions import Decimal

TOP_VALUE_BYTES_MAX: Final = 256
_HLL_LG_K: Final = 12  # a standard error of 1.6 %, in 2 KiB
_DIGEST_K: Final = 200
_TOP_LG_MIN: Final = 10  # 768 counters, whose error is at most 0.35 % of the number of values
_COUNTERS_FOR_EACH: Final = 8  # for each value that is returned
_LEFT_OUT: Final = 1
_HEAD: Final = struct.Struct(">BI")  # flags, length of the sketch
_LENGTH: Final = struct.Struct(">H")
_HASH_BYTES: Final = 8


@cache
def load_library() -> Any:
    """Import the library, which takes a tenth of a second."""
    return importlib.import_module("datasketches")


class _State:
    """Hold the stored sketch, empty until the first buffer was full, and the values since."""

    __slots__ = ("buffer", "flags", "sketch")

    def __init__(self, sketch: bytes = b"", buffer: list[Any] | None = None, flags: int = 0) -> None:
        self.sketch = sketch
        self.buffer: list[Any] = [] if buffer is None else buffer
        self.flags = flags

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _State) and (self.sketch, self.buffer, self.flags) == (
            other.sketch,
            other.buffer,
            other.flags,
        )

    __hash__ = None  # type: ignore[assignment]


class _Buffered(ABC):
    """Fold values into a buffer, and full buffers into a sketch. States are changed in place."""

    layout = VARIABLE
    buffer_max: int

    def __init__(self, _column: AggregateColumn, type: str) -> None:
        self._type = type

    def new(self) -> _State:
        return _State()

    def fold(self, state: _State, value: Any) -> _State:
        if value is None:
            return state
        entry = self._entry(value)
        if entry is None:
            state.flags |= _LEFT_OUT
            return state
        state.buffer.append(entry)
        if len(state.buffer) >= self.buffer_max:
            sketch = self._sketch_of(state)
            state.sketch = self._stored(sketch)
            state.buffer = []
        return state

    def merge(self, earlier: _State, later: _State) -> _State:
        flags = earlier.flags | later.flags
        if not later.sketch and len(earlier.buffer) + len(later.buffer) < self.buffer_max:
            return _State(earlier.sketch, earlier.buffer + later.buffer, flags)
        merged = self._union(self._sketch_of(earlier), self._sketch_of(later))
        return _State(self._stored(merged), [], flags)

    def load(self, raw: bytes) -> _State:
        flags, length = _HEAD.unpack_from(raw)
        end = _HEAD.size + length
        return _State(raw[_HEAD.size : end], self._load_buffer(raw[end:]), flags)

    def dump(self, state: _State) -> bytes:
        head = _HEAD.pack(state.flags, len(state.sketch))
        return head + state.sketch + self._dump_buffer(state.buffer)

    def problem(self, _state: _State) -> str | None:
        return None

    def _sketch_of(self, state: _State) -> Any:
        """Return a sketch of all values so far."""
        sketch = self._loaded(state.sketch) if state.sketch else self._empty()
        for entry in state.buffer:
            self._update(sketch, entry)
        return sketch

    def _update(self, sketch: Any, entry: Any) -> None:
        sketch.update(entry)

    @abstractmethod
    def render(self, state: _State) -> str:
        """Return the result as JSON."""

    @abstractmethod
    def _entry(self, value: Any) -> Any:
        """Return what the buffer keeps of a value; None if it is left out."""

    @abstractmethod
    def _load_buffer(self, raw: bytes) -> list[Any]: ...

    @abstractmethod
    def _dump_buffer(self, buffer: Sequence[Any]) -> bytes: ...

    @abstractmethod
    def _empty(self) -> Any: ...

    @abstractmethod
    def _loaded(self, raw: bytes) -> Any: ...

    @abstractmethod
    def _stored(self, sketch: Any) -> bytes: ...

    @abstractmethod
    def _union(self, one: Any, other: Any) -> Any: ...


class ApproxCountDistinct(_Buffered):
    """Estimate the number of distinct values with HyperLogLog, from a hash of their canonical bytes."""

    buffer_max = 64

    def render(self, state: _State) -> str:
        return str(round(self._sketch_of(state).get_estimate()))

    def _entry(self, value: Any) -> int:
        hashed = blake2b(to_bytes(value, self._type), digest_size=_HASH_BYTES).digest()
        return int.from_bytes(hashed, "big", signed=True)

    def _load_buffer(self, raw: bytes) -> list[int]:
        return list(struct.unpack(f">{len(raw) // _HASH_BYTES}q", raw))

    def _dump_buffer(self, buffer: Sequence[int]) -> bytes:
        return struct.pack(f">{len(buffer)}q", *buffer)

    def _empty(self) -> Any:
        library = load_library()
        return library.hll_sketch(_HLL_LG_K, library.HLL_4)

    def _loaded(self, raw: bytes) -> Any:
        return load_library().hll_sketch.deserialize(raw)

    def _stored(self, sketch: Any) -> bytes:
        return bytes(sketch.serialize_compact())

    def _union(self, one: Any, other: Any) -> Any:
        library = load_library()
        union = library.hll_union(_HLL_LG_K)
        union.update(one)
        union.update(other)
        return union.get_result(library.HLL_4)


class ApproxQuantiles(_Buffered):
    """Estimate quantiles of the finite values with a t-digest."""

    buffer_max = 256

    def __init__(self, column: AggregateColumn, type: str) -> None:
        super().__init__(column, type)
        self._ranks = column.quantiles

    def render(self, state: _State) -> str:
        sketch = self._sketch_of(state)
        if sketch.is_empty():
            return "null"
        return f"[{','.join([double_json(sketch.get_quantile(rank)) for rank in self._ranks])}]"

    def problem(self, state: _State) -> str | None:
        return "values that are no finite numbers are left out" if state.flags & _LEFT_OUT else None

    def _entry(self, value: float | Decimal) -> float | None:
        number = value.unscaled / 10**value.scale if isinstance(value, Decimal) else float(value)
        return number if math.isfinite(number) else None

    def _load_buffer(self, raw: bytes) -> list[float]:
        return list(struct.unpack(f">{len(raw) // 8}d", raw))

    def _dump_buffer(self, buffer: Sequence[float]) -> bytes:
        return struct.pack(f">{len(buffer)}d", *buffer)

    def _empty(self) -> Any:
        return load_library().tdigest_double(_DIGEST_K)

    def _loaded(self, raw: bytes) -> Any:
        return load_library().tdigest_double.deserialize(raw)

    def _stored(self, sketch: Any) -> bytes:
        return bytes(sketch.serialize())

    def _union(self, one: Any, other: Any) -> Any:
        one.merge(other)
        return one


class TopK(_Buffered):
    """Count the most frequent values. Counts are exact while there are fewer distinct values than counters."""

    buffer_max = 64

    def __init__(self, column: AggregateColumn, type: str) -> None:
        super().__init__(column, type)
        self._k = column.k
        needed = math.ceil(math.log2(_COUNTERS_FOR_EACH * max(1, column.k) / 0.75))
        self._lg = max(_TOP_LG_MIN, needed)

    def render(self, state: _State) -> str:
        kind = load_library().frequent_items_error_type.NO_FALSE_NEGATIVES
        counted = [
            (-estimate, item.encode("latin-1"))
            for item, estimate, _, _ in self._sketch_of(state).get_frequent_items(kind)
        ]
        type = self._type
        items = [
            f'{{"value":{value_json(from_bytes(raw, type), type)},"count":{-negative}}}'
            for negative, raw in nsmallest(self._k, counted)
        ]
        return f"[{','.join(items)}]"

    def problem(self, state: _State) -> str | None:
        if not state.flags & _LEFT_OUT:
            return None
        return f"values of more than {TOP_VALUE_BYTES_MAX} bytes are left out"

    def _entry(self, value: Any) -> bytes | None:
        raw = to_bytes(value, self._type)
        return raw if len(raw) <= TOP_VALUE_BYTES_MAX else None

    def _update(self, sketch: Any, entry: bytes) -> None:
        sketch.update(entry.decode("latin-1"))  # the library takes text only

    def _load_buffer(self, raw: bytes) -> list[bytes]:
        buffer, at = [], 0
        while at < len(raw):
            (length,) = _LENGTH.unpack_from(raw, at)
            at += _LENGTH.size + length
            buffer.append(raw[at - length : at])
        return buffer

    def _dump_buffer(self, buffer: Sequence[bytes]) -> bytes:
        return b"".join([_LENGTH.pack(len(raw)) + raw for raw in buffer])

    def _empty(self) -> Any:
        return load_library().frequent_strings_sketch(self._lg)

    def _loaded(self, raw: bytes) -> Any:
        return load_library().frequent_strings_sketch.deserialize(raw)

    def _stored(self, sketch: Any) -> bytes:
        return bytes(sketch.serialize())

    def _union(self, one: Any, other: Any) -> Any:
        one.merge(other)
        return one
