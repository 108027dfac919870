"""Write the versions of a key as JSON, and refuse a read as of a moment whose rows are removed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import aclosing
from itertools import islice

from queryable_app.aggregates.rendering import Render
from queryable_app.errors import shown
from queryable_app.serve.base.peer_frames import RawRow
from queryable_app.serve.reads.change_events import to_objects
from queryable_app.serve.reads.past_rows import not_retained
from queryable_app.serve.reads.scans import Batches, Line, ToLines, ToText
from queryable_app.wire.as_of import AsOf
from queryable_app.wire.serde import KeyCodec
from queryable_app.wire.version_keys import is_not_retained, key_in


def version_lines(codec: KeyCodec, render: Render | None) -> ToLines:
    """Return a function from versions to JSON objects, those of deletions too."""
    return lambda batch: list(_lines(batch, codec, render))


def version_text(codec: KeyCodec, render: Render | None) -> ToText:
    """Return a function from versions to lines of JSON, and the number of lines."""

    def text(batch: list[RawRow], limit: int) -> tuple[bytes, int]:
        found = [line + b"\n" for _, line in islice(_lines(batch, codec, render), limit)]
        return b"".join(found), len(found)

    return text


def _lines(batch: Sequence[RawRow], codec: KeyCodec, render: Render | None) -> Iterator[Line]:
    rows = [(key_in(version), partition, stored) for version, partition, stored in batch]
    objects = to_objects(codec, render)(rows)
    return zip([version for version, _, _ in batch], objects, strict=True)


async def retained_rows(batches: Batches, as_of: AsOf, codec: KeyCodec) -> Batches:
    """Yield the same batches. Raises Failure at a key whose row of then is removed."""
    async with aclosing(batches):
        async for batch in batches:
            for key, _, stored in batch:
                if is_not_retained(stored):
                    text, _ = codec.to_json(codec.to_record(key))
                    raise not_retained(f"the key {shown(text.decode())}", as_of)
            yield batch
