"""Describe the kinds of views that a world may have: what records add, and what a view of the log must show.

Strategy: the oracles fold the records of the log with plain Python numbers. The row of an aggregate follows from the records of
its key so far. So the topic of a view by record key has, for each record, the row that a read then shows: `row_after`. Windows
and rekeyed views are folded when a read is checked (`window_reader`, `rekeyed_checks`, `keyed_checks`).
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from queryable_app.aggregates.entry_keys import shifted
from queryable_app.aggregates.windows import Windows
from queryable_app.config.aggregates import parse_view_aggregate
from queryable_app.wire import contributions
from queryable_app.wire.disk_format import Row, encode_row
from queryable_app.wire.row_frames import DROPPED, NULL_KEY, ROW, SliceRow
from tests.simulation.writer_keys import CHANGING_KEYS, changing_key
from tests.support import windows as window_oracle
from tests.support.fold import LogRecord
from tests.support.windows import Rules

Kind = Literal["latest", "aggregate", "windows", "rekeyed", "rekeyed windows", "keyed", "entries"]

Feature = Literal["changes", "history", "indexes"]

_FEATURES: Final[Sequence[Sequence[Feature]]] = (
    (),
    ("changes",),
    ("history",),
    ("history", "changes"),
    ("indexes",),
    ("indexes",),
    ("indexes", "changes"),
)
CITIES: Final = ("Ankara", "Bergen", "Bergen Op Zoom", "Cork")
_INDEXES: Final = (
    {"name": "by-city", "field": "city", "type": "string"},
    {"name": "by-number", "field": "n", "type": "long"},
)
_RETENTION_MS: Final = (7 * 86_400_000, 5000)
_ENTRY_RETENTION_MS: Final = (None, 3000, 3000, 7000, 15_000)
_FEED_SHARE: Final = 0.5
"""The share of the worlds with a change feed, among those of other views than latest values."""
_KINDS: Final[Mapping[Kind, int]] = {
    "latest": 5,
    "aggregate": 2,
    "windows": 2,
    "rekeyed": 2,
    "rekeyed windows": 2,
    "keyed": 2,
    "entries": 2,
}
_GROUP: Final = "city"
_TYPES: Final = "-ll"
_PRESENT: Final = 2
_LARGE: Final = 1 << 62
_COLUMNS: Final[list[dict[str, Any]]] = [
    {"name": "n", "op": "count"},
    {"name": "total", "op": "sum", "of": "amount"},
    {"name": "top", "op": "max", "of": "amount"},
    {"name": "items", "op": "approx_count_distinct", "of": "item"},
]
_ORDERED: Final = [
    {"name": "first", "op": "first", "of": "amount"},
    {"name": "last", "op": "last", "of": "amount"},
]
_WINDOWS: Final = (
    (Rules(5000, 5000, 2000, 10_000), {"size": "5s", "grace": "2s", "retention": "10s"}),
    (Rules(6000, 2000, 1000, 8000), {"size": "6s", "slide": "2s", "grace": "1s", "retention": "8s"}),
    (Rules(0, 0, 1000, 9000, 1500), {"sessionGap": "1500ms", "grace": "1s", "retention": "9s"}),
)
_EVENT_AT_ONCE_MS: Final = (-40, 40)
_YEAR_1_MS: Final = -62_135_596_800_000
_YEAR_10000_MS: Final = 253_402_300_800_000


class View:
    """Hold the view of one world: its kind, its resource, and what its records add."""

    def __init__(self, seed: int, kind: Kind | None = None) -> None:
        choice = random.Random(f"{seed}/view")
        drawn = choice.choices([*_KINDS], [*_KINDS.values()])[0]
        self.kind: Kind = kind or drawn
        self.rules, self._window = choice.choice(_WINDOWS)
        self.rekeyed = self.kind in ("rekeyed", "rekeyed windows", "keyed")
        """Whether the view has other keys than the record keys, and so a rekey job."""
        self.windowed = self.kind in ("windows", "rekeyed windows")
        self.features: frozenset[Feature] = frozenset()
        """What the view has beside its rows."""
        if self.kind == "latest":
            self.features = frozenset(choice.choice(_FEATURES))
        elif self.kind != "entries" and random.Random(f"{seed}/feed").random() < _FEED_SHARE:
            self.features = frozenset(("changes",))
        self.history = "history" in self.features
        self.retention_ms = choice.choice(_RETENTION_MS)
        """How long a view with history keeps versions."""
        self.entry_retention_ms = random.Random(f"{seed}/entries").choice(_ENTRY_RETENTION_MS)
        """How long a view of entries keeps them, by the clock of their partition; None: for ever."""

    @property
    def windows(self) -> Windows:
        """Return the windows of the view as the product has them."""
        spec = parse_view_aggregate(self.spec["view"])
        assert spec is not None
        assert spec.window is not None
        return Windows(spec.window)

    @property
    def spec(self) -> dict[str, Any]:
        """Return the field `view` of the resource."""
        spec = self._spec
        if "changes" in self.features:
            spec["changes"] = True
        return {"view": spec}

    @property
    def _spec(self) -> dict[str, Any]:
        """Return the field without the change feed."""
        if self.kind == "latest":
            view: dict[str, Any] = {}
            if "indexes" in self.features:
                view["indexes"] = [*_INDEXES]
            if self.history:
                view |= {"kind": "history", "history": {"retention": f"{self.retention_ms}ms"}}
            return view
        if self.kind == "entries":
            retention = (
                {} if self.entry_retention_ms is None else {"retention": f"{self.entry_retention_ms}ms"}
            )
            return {"entries": {"timeField": "at", **retention}}
        if self.kind == "keyed":
            return {"keyBy": [_GROUP]}
        if self.windowed:
            view = window_oracle.view(**self._window)
            if self.rekeyed:
                view["aggregate"]["groupBy"] = [_GROUP]
            return view
        aggregate: dict[str, Any] = {"columns": _COLUMNS + ([] if self.rekeyed else _ORDERED)}
        if self.rekeyed:
            aggregate["groupBy"] = [_GROUP]
        return {"kind": "aggregate", "aggregate": aggregate}

    def value(self, serial: int, now_ms: int, choice: random.Random) -> bytes:
        """Return the value of a record: its number, and where windows are, its event time, or what indexes find it by."""
        if "indexes" in self.features:
            return _indexed_value(serial)
        if self.kind == "entries":  # some have the same time
            at = now_ms - choice.randrange(9000)
            if choice.random() < 0.03:  # a wrong clock
                at = now_ms + choice.choice((2000, 600_000 if serial % 5 == 0 else 7_200_000, 7_200_000))
            return json.dumps({"n": serial, "at": at // 300 * 300}).encode()
        return b"%d,%d" % (serial, _event_ms(now_ms, choice)) if self.windowed else b"%d" % serial

    def row_after(self, before: Sequence[LogRecord], record: LogRecord) -> LogRecord | None:
        """Return the row that a key has after a record, given its records before; None: the record changes nothing."""
        if self.kind == "latest":
            return record
        if record.value is None or self.windowed or self.rekeyed or self.kind == "entries":
            return None
        serials = [int(each.value) for each in (*before, record) if each.value is not None]
        return LogRecord(
            record.partition, record.offset, record.timestamp_ms, record.key, shown(serials, True)
        )

    def slice_row(self, record: LogRecord) -> SliceRow:
        """Return the row of a record as the writer sends it."""
        if record.key is None:
            return SliceRow(b"", b"", NULL_KEY, record.offset)
        if self.kind == "latest" or self.rekeyed:  # the records of an internal topic are taken as they are
            stored = encode_row(Row(record.offset, record.timestamp_ms, 0, record.value))
        elif self.kind == "entries":
            time = 0 if record.value is None else shifted(json.loads(record.value)["at"])
            stored = encode_row(Row(record.offset, record.timestamp_ms, time, record.value))
        elif record.value is None:
            return SliceRow(record.key, b"", DROPPED, record.offset)
        elif self.kind == "windows":
            return window_oracle.row_of(record.offset, window_record(record))
        else:
            stored = contribution(record.offset, record.timestamp_ms, int(record.value))
        return SliceRow(record.key, stored, ROW, record.offset)


def _indexed_value(serial: int) -> bytes:
    """Return a value with a number and a city; in some the city is of another type, or is missing."""
    value: dict[str, Any] = {"n": serial}
    if serial % 7:
        value["city"] = serial if serial % 11 == 0 else CITIES[serial // 3 % len(CITIES)]
    return json.dumps(value).encode()


def contribution(offset: int, timestamp_ms: int, serial: int) -> bytes:
    """Return what the record with this number adds, with its row header."""
    inputs = [_PRESENT, _amount(serial), serial % 9]
    return contributions.encode(_TYPES, offset, timestamp_ms, timestamp_ms, inputs)


def shown(serials: Sequence[int], ordered: bool) -> bytes:
    """Return the row of a group with the records of these numbers, in JSON."""
    amounts = [_amount(serial) for serial in serials]
    known = [amount for amount in amounts if amount is not None]
    total = sum(known)
    fits = -(1 << 63) <= total < 1 << 63
    row: dict[str, Any] = {
        "n": len(serials),
        "total": total if known and fits else None,
        "top": max(known, default=None),
        "items": len({serial % 9 for serial in serials}),
    }
    if ordered:
        row |= {"first": amounts[0], "last": amounts[-1]}
    if not fits:
        row["_errors"] = {"total": "sum beyond 64 bits"}
    return json.dumps(row).encode()


def window_record(record: LogRecord) -> window_oracle.Record:
    """Return a record of the log as the oracle of windows takes it."""
    assert record.key is not None
    assert record.value is not None
    serial, event_ms = map(int, record.value.split(b","))
    return window_oracle.Record(record.key, event_ms, serial if serial % 7 else None)  # its sums fit


def window_rows(record: LogRecord) -> Sequence[window_oracle.Record]:
    """Return the rows of a record in a rekeyed view with windows."""
    if record.key is None or record.value is None:
        return ()
    own = window_record(record)
    return [own._replace(key=key) for key, _ in groups_of(record)]


def groups_of(record: LogRecord) -> Sequence[tuple[bytes, int]]:
    """Return the rows of a record: group and number. Some add to two groups, and some twice to one."""
    if record.key is None or record.value is None:
        return ()
    serial = int(record.value.split(b",")[0])
    rows = [(record.key, serial)]
    if serial % 4 == 0:
        rows.append((changing_key(serial % CHANGING_KEYS), serial))
    if serial % 6 == 0:
        rows.append((record.key, serial))
    return rows


def _amount(serial: int) -> int | None:
    """Return the amount of a record: null in some, and in some so large that few of them leave 64 bits."""
    if serial % 7 == 0:
        return None
    return serial if serial % 31 else (_LARGE if serial % 2 else -_LARGE)


def _event_ms(now_ms: int, choice: random.Random) -> int:
    """Return an event time: mostly now, sometimes late, and sometimes that of a wrong clock."""
    kind = choice.random()
    if kind < 0.7:
        return now_ms
    if kind < 0.94:
        return now_ms - choice.randrange(12_000)
    if kind < 0.96:
        return now_ms + choice.randrange(3000)
    return choice.choice(
        (0, _YEAR_1_MS, _YEAR_1_MS - 1, _YEAR_10000_MS - 1, _YEAR_10000_MS, now_ms + 7_200_000)
    )
