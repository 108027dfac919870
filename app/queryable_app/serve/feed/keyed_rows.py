"""Keep the latest value under another key than the record key: of all record keys that have this key now, the newest record.

Strategy: a record takes the row of its record key away from the key that it had before, and puts its own. Rows that are not
the newest of their key are hidden (wire/hidden_rows.py), and the next one is shown when the shown one goes. The offset of a row
is that of the record that made its key show it. Rows, hidden rows and source positions change in one write. Which rows there are
follows from the source positions alone, so all replicas agree.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from queryable_app.aggregates.states import StateError
from queryable_app.policy.source_positions import SourcePositions
from queryable_app.serve.feed.slices import Changes
from queryable_app.serve.store.store import Store
from queryable_app.wire.disk_format import ROW_HEADER, ROW_HEADER_SIZE, Row, encode_row
from queryable_app.wire.envelopes import HEADER_SIZE, Envelope, decode_envelope
from queryable_app.wire.hidden_rows import (
    Place,
    Shown,
    Version,
    decode_place,
    decode_shown,
    encode_place,
    encode_shown,
    hidden_key,
    hidden_prefix,
    hidden_version,
    keyless_place_key,
    place_key,
    prefix_end,
    shown_key,
)
from queryable_app.wire.keyed_contents import (
    ALONE_FROM_SIZE,
    KEYLESS,
    LEFT,
    KeyedContent,
    decode_alone_from,
    decode_keyed,
)

_CONTENT: Final = ROW_HEADER_SIZE + HEADER_SIZE


class KeyedRows:
    """Turn the envelopes of slices into changes. Raises EnvelopeError for a record that the rekey job did not write."""

    def __init__(self, source_partitions: int) -> None:
        self._source_partitions = source_partitions

    def changes(
        self, store: Store, rows: Sequence[tuple[bytes, bytes]], _source_times: Sequence[int] | None = None
    ) -> Changes:
        sources = (store.sources or SourcePositions.none(self._source_partitions)).copy()
        new: list[tuple[bytes, bytes, Envelope, KeyedContent]] = []
        for disk_key, stored in rows:
            envelope = decode_envelope(stored, ROW_HEADER_SIZE)
            alone_from = decode_alone_from(stored, _CONTENT)
            if not envelope.sequence:
                sources.begin(envelope, stored[_CONTENT + ALONE_FROM_SIZE :], alone_from=alone_from)
            elif sources.take(envelope, alone_from=alone_from):
                new.append((disk_key, stored, envelope, decode_keyed(stored, _CONTENT)))
        moves = _Moves(store)
        moves.load((_place_of(key, envelope, content), key) for key, _, envelope, content in new)
        removed = 0
        for disk_key, stored, envelope, content in new:
            place = _place_of(disk_key, envelope, content)
            offset: int = ROW_HEADER.unpack_from(stored)[1]
            moves.offset, moves.timestamp_ms = offset, envelope.timestamp_ms
            if content.kind == LEFT:
                removed += moves.remove(place)
                continue
            row = ROW_HEADER.pack(0, offset, envelope.timestamp_ms, 0) + content.value
            version = Version(envelope.timestamp_ms, envelope.partition, envelope.offset)
            moves.put(place, Place(version, disk_key), row)
        left = sum(content.kind == LEFT for _, _, _, content in new)
        skipped = len(rows) - len(new) + left - removed
        return Changes(
            moves.puts(), removed, moves.deletes, sources=sources, skipped=skipped, entries=moves.entries()
        )


def _place_of(disk_key: bytes, envelope: Envelope, content: KeyedContent) -> bytes:
    if content.kind == KEYLESS:
        return keyless_place_key(disk_key)
    return place_key(envelope.partition, content.record_key)


class _Overlay:
    """Read keys as they are after the changes of a slice that is not written yet."""

    def __init__(self, read: Callable[[list[bytes]], list[bytes | None]]) -> None:
        self._read = read
        self._loaded: dict[bytes, bytes | None] = {}
        self.changed: dict[bytes, bytes | None] = {}
        """The new values; None: deleted."""

    def load(self, keys: Iterable[bytes]) -> None:
        wanted = sorted(set(keys) - self._loaded.keys())
        self._loaded |= zip(wanted, self._read(wanted), strict=True)

    def get(self, key: bytes) -> bytes | None:
        if key in self.changed:
            return self.changed[key]
        if key not in self._loaded:
            self.load((key,))
        return self._loaded[key]


class _Moves:
    """Apply the records of one slice in their order."""

    def __init__(self, store: Store) -> None:
        self.rows = _Overlay(store.multi_get)
        self._entries = _Overlay(store.multi_get_entries)
        self._hidden: dict[bytes, dict[bytes, bytes | None]] = defaultdict(dict)  # by the prefix of a key
        self._store = store
        self.offset = self.timestamp_ms = 0
        """The offset and the timestamp of the record that is applied."""
        self.deletes: dict[bytes, bytes] = {}
        """The deleted rows, with their tombstones."""

    def load(self, records: Iterable[tuple[bytes, bytes]]) -> None:
        """Read what the records will need in two calls. Each is the entry of its place, and its key."""
        places, keys = set(), set()
        for place, disk_key in records:
            places.add(place)
            keys.add(disk_key)
        self._entries.load(places)
        before = [decode_place(found).disk_key for place in places if (found := self._entries.get(place))]
        self._entries.load(map(shown_key, {*keys, *before}))

    def puts(self) -> list[tuple[bytes, bytes]]:
        return [(key, row) for key, row in self.rows.changed.items() if row is not None]

    def entries(self) -> list[tuple[bytes, bytes | None]]:
        hidden = [each for changed in self._hidden.values() for each in changed.items()]
        return [*self._entries.changed.items(), *hidden]

    def put(self, place_entry: bytes, place: Place, row: bytes) -> None:
        """Put the row of a record in the place of its record key."""
        version, disk_key = place
        found = self._entries.get(place_entry)
        if found is not None:
            before = decode_place(found)
            if before.version > version and place_entry == keyless_place_key(disk_key):
                return  # records without a key come from all source partitions, in any order
            shown = self._shown(disk_key)
            if shown is not None and shown.version == before.version < version:
                self._entries.changed[place_entry] = encode_place(place)
                self._show(disk_key, Shown(version, shown.others), row)
                return
            self._take_away(before)
        self._entries.changed[place_entry] = encode_place(place)
        shown = self._shown(disk_key)
        if shown is None:
            self._show(disk_key, Shown(version, False), row)
        elif shown.version < version:
            self._hide(disk_key, shown.version, self._row(disk_key))
            self._show(disk_key, Shown(version, True), row)
        else:
            self._hide(disk_key, version, row)
            self._show(disk_key, Shown(shown.version, True), None)

    def remove(self, place_entry: bytes) -> bool:
        """Remove the row of a record key. Return whether there was one."""
        found = self._entries.get(place_entry)
        if found is None:
            return False
        self._entries.changed[place_entry] = None
        self._take_away(decode_place(found))
        return True

    def _take_away(self, place: Place) -> None:
        """Take the row out of its key, and show the next one of that key if it was shown."""
        version, disk_key = place
        shown = self._shown(disk_key)
        if shown is None or shown.version != version:
            self._hide(disk_key, version, None)
            return
        entry = self._first_hidden(disk_key) if shown.others else None
        if entry is None:
            self.rows.changed[disk_key] = self._entries.changed[shown_key(disk_key)] = None
            self.deletes[disk_key] = encode_row(Row(self.offset, self.timestamp_ms, 0, None))
            return
        key, row = entry
        self._hidden[hidden_prefix(disk_key)][key] = None
        flags, _, timestamp_ms, expiry_ms = ROW_HEADER.unpack_from(row)
        header = ROW_HEADER.pack(flags, self.offset, timestamp_ms, expiry_ms)
        self._show(disk_key, Shown(hidden_version(key), True), header + row[ROW_HEADER_SIZE:])

    def _shown(self, disk_key: bytes) -> Shown | None:
        found = self._entries.get(shown_key(disk_key))
        return None if found is None else decode_shown(found)

    def _row(self, disk_key: bytes) -> bytes:
        row = self.rows.get(disk_key)
        if row is None:
            raise StateError("a row that should be shown is missing")
        return row

    def _show(self, disk_key: bytes, shown: Shown, row: bytes | None) -> None:
        """Note what a key shows. `row` is its row, if it changes."""
        self._entries.changed[shown_key(disk_key)] = encode_shown(shown)
        if row is not None:
            self.rows.changed[disk_key] = row
            self.deletes.pop(disk_key, None)

    def _hide(self, disk_key: bytes, version: Version, row: bytes | None) -> None:
        """Put a hidden row, or delete it if there is none."""
        self._hidden[hidden_prefix(disk_key)][hidden_key(disk_key, version)] = row

    def _first_hidden(self, disk_key: bytes) -> tuple[bytes, bytes] | None:
        """Return the newest hidden row of a key, with its entry."""
        prefix = hidden_prefix(disk_key)
        changed = self._hidden[prefix]
        found = [(key, row) for key, row in changed.items() if row is not None]
        for key, row in self._store.entries(prefix, prefix_end(prefix)):
            if key not in changed:
                found.append((key, row))
                break
        return min(found, default=None)
