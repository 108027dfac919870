"""Test that a replica of a latest-value view under another key is copied from a peer with the rows behind those that it shows."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from queryable_app.platform.clock import monotonic_ms
from queryable_app.serve.node import Node
from queryable_app.serve.store.rekeyed_replica import RekeyedReplica
from queryable_app.wire.disk_format import ROW_HEADER, decode_row
from queryable_app.wire.envelopes import MARKER_KEY, Envelope, encode_envelope
from queryable_app.wire.hidden_rows import END, FIRST
from queryable_app.wire.keyed_contents import LEFT, ROW, KeyedContent, encode_keyed
from queryable_app.wire.row_frames import ROW as ROW_FRAME
from queryable_app.wire.row_frames import SliceRow
from tests.support.node import open_node, slice_payload
from tests.support.node_cluster import APPLICATION_ID
from tests.support.trio import Trio

VIEW: Final = {"kind": "latest", "keyBy": ["email"]}
SETTINGS: Final = {"group_key_format": "string"}
SHARED: Final = b"ann@x"


def envelope(offset: int, key: bytes, content: KeyedContent | None) -> SliceRow:
    """Return a record of the internal topic, at the offset at which the run wrote it. The first one begins the run."""
    rows = 0 if content is None else 1
    at = Envelope(0, max(0, offset - 1), 0, rows, 1, offset, offset)
    value = encode_envelope(at, encode_keyed(0, content))
    return SliceRow(key, ROW_HEADER.pack(0, offset, offset, 0) + value, ROW_FRAME, offset)


def user(offset: int, record_key: bytes, key: bytes = SHARED) -> SliceRow:
    return envelope(offset, key, KeyedContent(ROW, record_key, b'"%b"' % record_key))


def left(offset: int, record_key: bytes) -> SliceRow:
    return envelope(offset, MARKER_KEY, KeyedContent(LEFT, record_key, b""))


def shown(node: Node) -> dict[bytes, bytes | None]:
    rows = node.replicas.by_partition[0].store.rows()
    return {key: decode_row(stored).value for key, stored in rows}


def stored(node: Node) -> tuple[list[tuple[bytes, bytes]], list[tuple[bytes, bytes]]]:
    store = node.replicas.by_partition[0].store
    return [*store.rows()], [*store.entries(FIRST, END)]


CHANGES: Final[list[tuple[SliceRow, dict[bytes, bytes]]]] = [
    (user(5, b"u4", b"ann@y"), {SHARED: b'"u3"', b"ann@y": b'"u4"'}),  # the shown one moves
    (left(6, b"u3"), {SHARED: b'"u2"', b"ann@y": b'"u4"'}),  # the next one is deleted
    (left(7, b"u1"), {SHARED: b'"u2"', b"ann@y": b'"u4"'}),  # a hidden one is deleted
    (left(8, b"u2"), {b"ann@y": b'"u4"'}),
    (left(9, b"u4"), {}),
]


def test_copied_replica_has_the_rows_behind_those_that_it_shows(tmp_path: Path) -> None:
    """After the shown record of a key moves, and the next one is deleted, a copy shows the right next one, as its source does,
    and nothing is left at the end."""
    before = [envelope(0, MARKER_KEY, None), *(user(n, b"u%d" % n) for n in (1, 2, 3, 4))]
    with Trio(tmp_path / "nodes", settings=SETTINGS, view=VIEW) as trio:
        source = trio.nodes[0].node
        replica = source.replicas.by_partition[0]
        assert isinstance(replica, RekeyedReplica)
        trio.nodes[0].on_loop(lambda: source.slices.apply(slice_payload(*before)))
        trio.nodes[0].on_loop(lambda: replica.note_source_ends(monotonic_ms(), (4,)))
        trio.into = tmp_path / "data" / APPLICATION_ID / "p0000"
        assert trio.fetch()

        copy = open_node(tmp_path, view=VIEW, settings=SETTINGS)
        try:
            copy.replicas.by_partition[0].accepts_slices = True
            for change, expected in CHANGES:
                copy.slices.apply(slice_payload(change))
                trio.nodes[0].on_loop(lambda change=change: source.slices.apply(slice_payload(change)))  # type: ignore[misc]
                assert shown(copy) == expected
                assert stored(copy) == trio.nodes[0].on_loop(lambda: stored(source))
            assert stored(copy) == ([], [])
        finally:
            copy.replicas.close()
