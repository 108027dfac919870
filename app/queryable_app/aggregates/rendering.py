"""Render the stored state of a group as one JSON object, with a member for each column."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

from queryable_app.aggregates.states import codes_of, state_codec
from queryable_app.config.aggregate_spec import AggregateSpec
from queryable_app.wire.disk_format import ROW_HEADER_SIZE

_NO_HEADER: Final = bytes(ROW_HEADER_SIZE)
_ERRORS: Final = "_errors"
_to_json: Final = json.JSONEncoder(ensure_ascii=False).encode


def state_renderer(spec: AggregateSpec) -> Callable[[bytes], bytes]:
    """Return the function from a stored state without its row header to JSON.

    The last member of the object names the problems of columns, if there are any.
    """
    columns = spec.columns
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
