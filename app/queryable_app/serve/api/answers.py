"""What requests carry and what answers look like, as OpenAPI says it.

A route lists the descriptions that apply to it; real answers are checked against them in the tests.
"""

from __future__ import annotations

from typing import Any, Final

from queryable_app.errors import Reason
from queryable_app.wire.http_text import BYTES, JSON, NDJSON, PROBLEM

Schema = dict[str, Any]
Responses = dict[int | str, dict[str, Any]]

_COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
_ANY: Final[Schema] = {"description": "A JSON value of any kind."}
_KEY: Final[Schema] = {"description": "Text, or a number where keys are numbers."}


def _object(required: Schema, **optional: Schema) -> Schema:
    """An object that has all of `required`, perhaps some of `optional`, and nothing else."""
    properties = required | optional
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def _list_of(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _content(schema: Schema, media_type: str = JSON) -> dict[str, Any]:
    return {"content": {media_type: {"schema": schema}}}


def _answer(description: str, schema: Schema, media_type: str = JSON) -> dict[str, Any]:
    return {"description": description, **_content(schema, media_type)}


_ENCODING: Final[Schema] = {"const": "base64url", "description": "The key cannot be said in its format."}
_WHERE: Final[Schema] = {"partition": _COUNT, "offset": _COUNT, "timestamp": {"type": "integer"}}
_COVERAGE: Final[Schema] = {
    "complete": {"type": "boolean"},
    "missing": _list_of(_COUNT),
    "positions": {"type": "object", "additionalProperties": {"type": "integer"}},
}
_ROW: Final = _object({"key": _KEY, "value": _ANY, **_WHERE}, keyEncoding=_ENCODING)
_ITEM: Final = _object(
    {"key": _KEY, "found": {"type": ["boolean", "null"]}}, value=_ANY, keyEncoding=_ENCODING, **_WHERE
)
_CURSOR: Final[Schema] = {"type": ["string", "null"]}
_PAGE: Final = _object({"items": _list_of(_ROW), "cursor": _CURSOR, **_COVERAGE})
_ITEMS: Final = _object({"items": _list_of(_ITEM), **_COVERAGE})
_COUNTED: Final = _object({"count": _COUNT, "approximate": {"type": "boolean"}, **_COVERAGE})
_POSITION: Final = _object({"partition": _COUNT, "offset": _COUNT, "position": {"type": "string"}})
_RECORD: Final = _object({"key": _KEY, "value": _ANY})
_PROBLEM: Final = _object(
    {
        "status": {"enum": sorted({reason.status for reason in Reason})},
        "reason": {"enum": [reason.slug for reason in Reason]},
        "title": {"type": "string"},
        "detail": {"type": "string"},
        "advice": {"type": "string"},
    },
    partition=_COUNT,
    position={"type": "string"},
    missing=_list_of(_COUNT),
    retryAfterMs=_COUNT,
)
_READINESS: Final = _object(
    {
        "ready": {"type": "boolean"},
        "draining": {"type": "boolean"},
        "hydrating": _COUNT,
        "complete": _COUNT,
        "copies": _COUNT,
        "progress": {"type": "number", "minimum": 0, "maximum": 1},
        "failed": {"type": "object", "additionalProperties": {"type": "string"}},
        "retrying": {"type": "object", "additionalProperties": {"type": "string"}},
        "stalled": _list_of(_COUNT),
        "ingestFailed": {"type": ["string", "null"]},
    }
)

PROBLEMS: Final[Responses] = {"default": _answer("A failure, of a closed set of reasons.", _PROBLEM, PROBLEM)}
"""Any request may end in one."""

_NOT_MODIFIED: Final[Responses] = {304: {"description": "The caller has it already."}}
_BYTES: Final[Schema] = {"type": "string", "format": "binary"}
VALUE: Final[Responses] = {
    200: {
        "description": "The value.",
        "content": {JSON: {"schema": _ANY}, BYTES: {"schema": _BYTES}},
    },
    307: {"description": "`route=redirect`: the node that has the key."},
    **_NOT_MODIFIED,
}
ITEMS: Final[Responses] = {200: _answer("An item for each key, in the same order.", _ITEMS)}
PAGE: Final[Responses] = {
    200: {
        "description": "A page of rows, or a stream of them, a row a line.",
        "content": {JSON: {"schema": _PAGE}, NDJSON: {"schema": _ROW}},
    }
}
COUNTED: Final[Responses] = {200: _answer("How many.", _COUNTED)}
WRITTEN: Final[Responses] = {
    200: _answer(
        "Where each record is; `position` is what `min-position` takes.",
        {"oneOf": [_POSITION, _list_of(_POSITION)]},
    )
}
READINESS: Final[Responses] = {
    200: _answer("Every copy that this node serves is complete.", _READINESS),
    503: _answer("Some are not yet, or the node is about to end.", _READINESS),
}
SOME_OBJECT: Final[Responses] = {200: _answer("As it is now.", {"type": "object"})}
PLACEMENT: Final[Responses] = SOME_OBJECT | _NOT_MODIFIED
METRICS: Final[Responses] = {200: _answer("Metrics.", {"type": "string"}, "text/plain")}


def body(schema: Schema) -> dict[str, Any]:
    """For `openapi_extra`: what a request must carry."""
    return {"requestBody": {"required": True, **_content(schema)}}


KEYS_BODY: Final = body(_object({"keys": _list_of(_KEY)}))
RECORDS_BODY: Final = body({"oneOf": [_RECORD, _list_of(_RECORD)]})
