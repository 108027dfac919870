"""Render stored values as JSON: those of an aggregated view as one object, with a member for each column."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Final

from queryable_app.aggregates.catalog import SKETCHES
from queryable_app.aggregates.sketches import load_library
from queryable_app.aggregates.states import codes_of, state_codec
from queryable_app.config.aggregate_spec import AggregateSpec
from queryable_app.config.topic_spec import TopicSpec
from queryable_app.wire.disk_format import ROW_HEADER_SIZE
from queryable_app.wire.serde import value_to_json

_NO_HEADER: Final = bytes(ROW_HEADER_SIZE)
_ERRORS: Final = "_errors"
_to_json: Final = json.JSONEncoder(ensure_ascii=False).encode

Render = Callable[[bytes], bytes]
"""From a stored value, without its row header, to JSON."""


def value_renderer(spec: TopicSpec) -> Render | None:
    """Return what renders the stored values of a view; None if they are JSON already."""
    if spec.aggregate is not None:
        return state_renderer(spec.aggregate)
    format = spec.stored_format
    return None if format == "json" else partial(value_to_json, format=format)


def state_renderer(spec: AggregateSpec) -> Render:
    """Return what renders the stored states of a view.

    The last member of the object names the problems of columns, if there are any.
    """
    columns = spec.columns
    if any(column.op in SKETCHES for column in columns):
        load_library()  # now, because a read should not wait for it
    heads = [f"{',' if n else '{'}{_to_json(column.name)}:" for n, column in enumerate(columns)]

    def render(state: bytes) -> bytes:
        stored = _NO_HEADER + state
        codec = state_codec(columns, codes_of(stored))
        parts: list[str] = []
        problems: dict[str, str] = {}
        states = codec.decode(stored).states
        for head, column, function, each in zip(heads, columns, codec.functions, states, strict=True):
            problem = function.problem(each)
            if problem is not None:
                problems[column.name] = problem
            parts += (head, function.render(each))
        if problems:
            parts.append(f',"{_ERRORS}":{_to_json(problems)}')
        parts.append("}")
        return "".join(parts).encode()

    return render
