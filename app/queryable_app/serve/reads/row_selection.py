"""Hold what a request takes of the rows in its range. One value passes it through all stages of a read.

A read with a selection does three things: it gives its rows to `row_filter(node, selection.where)`, at the node that has them; it
ends a page when its `LookBudget` is spent, with a cursor that `selection.scope` is part of; and it writes rows of which
`selection.render` has taken the fields.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from queryable_app.aggregates.rendering import Render
from queryable_app.wire.http_text import JSON, Answer, as_bytes, body_answer, matches_etag, single
from queryable_app.wire.projection import Projection, parse_projection
from queryable_app.wire.where import Where, parse_where

SELECTION: Final = ("where", "fields")
"""The parameters of a selection."""


@dataclass(frozen=True, slots=True)
class RowSelection:
    """The rows that match `where`, and of these the `fields`. None: all rows, and all of their value."""

    where: Where | None = None
    fields: Projection | None = None

    def scope(self, of_range: str) -> str:
        """Return what a cursor belongs to: the range of a read, and its conditions."""
        return of_range if self.where is None else f"{of_range} where {self.where.text}"

    def render(self, render: Render | None) -> Render | None:
        """Return what makes the selected fields of a stored value, where `render` makes the whole value."""
        if self.fields is None:
            return render
        fields_of = self.fields.of
        return fields_of if render is None else lambda stored: fields_of(render(stored))


def parse_row_selection(values: Mapping[str, Sequence[str]]) -> RowSelection:
    """Return the selection in the parameters of a request. Raises Failure that names the parameter."""
    where = single(values, "where")
    return RowSelection(None if where is None else parse_where(as_bytes(where)), parse_fields(values))


def parse_fields(values: Mapping[str, Sequence[str]]) -> Projection | None:
    """Return the fields in the parameters of a request. Raises Failure that names the parameter."""
    fields = single(values, "fields")
    return None if fields is None else parse_projection(as_bytes(fields))


def with_fields(answer: Answer, fields: Projection, if_none_match: str | None) -> Answer:
    """Return the answer to a point read with the named fields of its value. They are another entity than the value."""
    if answer.status != 200:
        return answer
    body = fields.of(answer.body)
    headers, tag = b"", ""
    for name, value in answer.header_list():
        if name == b"etag":
            tag = f'{value.decode()[:-1]}-f{crc32(fields.text.encode()):08x}"'
            headers += b"etag: %b\r\n" % tag.encode()
        elif name not in (b"content-type", b"content-length"):
            headers += b"%b: %b\r\n" % (name, value)
    if if_none_match is not None and matches_etag(if_none_match, tag):
        return Answer(304, headers, b"")
    return body_answer(body, JSON, headers)


def without_value(answer: Answer) -> Answer:
    """Return the answer to a point read with all that it says about the record, and without its value."""
    if answer.status != 200:
        return answer
    lines = answer.headers.split(b"\r\n")[:-1]
    kept = [line for line in lines if not line.startswith((b"content-type:", b"content-length:"))]
    return Answer(200, b"\r\n".join([*kept, b"content-length: 0", b""]), b"")
