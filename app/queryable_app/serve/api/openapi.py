"""Describe requests and answers for OpenAPI.

A route lists the parameters that it takes and the answers that it gives. Its requests are checked against the same list, and
tests check real answers against these schemas.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from queryable_app.errors import Reason
from queryable_app.policy.freshness import DEADLINE_MS_MAX, LAG_MAX, READ_OPTION_NAMES, ROUTES, Consistency
from queryable_app.wire.http_text import AVRO, AVRO_JSON, BYTES, EVENTS, JSON, NDJSON, PROBLEM
from queryable_app.wire.json_paths import TEXT_BYTES_MAX
from queryable_app.wire.key_filter import RATE, RATE_MAX, RATE_MIN

Schema = dict[str, Any]
Responses = dict[int | str, dict[str, Any]]

_COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
_ANY: Final[Schema] = {"description": "A JSON value of any kind."}
_KEY: Final[Schema] = {"description": "Text, or a number where keys are numbers."}


def _object(required: Schema, **optional: Schema) -> Schema:
    """Describe an object with all of `required`, any of `optional`, and nothing else."""
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


_ENCODING: Final[Schema] = {"const": "base64url", "description": "The key cannot be written in its format."}
_WHERE: Final[Schema] = {"partition": _COUNT, "offset": _COUNT, "timestamp": {"type": "integer"}}
_TIME: Final[Schema] = {"type": "string", "description": "ISO 8601, UTC, with milliseconds."}
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
_WINDOW: Final = _object(
    {
        "key": _KEY,
        "window": _object({"start": _TIME, "end": _TIME, "final": {"type": "boolean"}}),
        "value": _ANY,
        **_WHERE,
    },
    keyEncoding=_ENCODING,
)
_ENTRY: Final = _object({"key": _KEY, "time": _TIME, "value": _ANY, **_WHERE}, keyEncoding=_ENCODING)
_ENTRIES_PAGE: Final = _object({"items": _list_of(_ENTRY), "cursor": _CURSOR, **_COVERAGE})
_CHANGE: Final = _object(
    {"key": _KEY, "value": _ANY, **_WHERE},
    keyEncoding=_ENCODING,
    deleted={"const": True},
    window=_object({"start": _TIME}, end=_TIME),
)
_VERSION: Final = _object(
    {"key": _KEY, "value": _ANY, **_WHERE}, keyEncoding=_ENCODING, deleted={"const": True}
)
_VERSIONS_PAGE: Final = _object({"items": _list_of(_VERSION), "cursor": _CURSOR, **_COVERAGE})
_COMPACTED: Final = _object({"compacted": _object({"partition": _COUNT, "from": _COUNT, "until": _COUNT})})
_NEXT: Final = _object({"next": {"type": "string"}})
_WINDOWS_PAGE: Final = _object({"items": _list_of(_WINDOW), "cursor": _CURSOR, **_COVERAGE})
_TOP: Final = _object({"items": _list_of(_WINDOW), **_COVERAGE})
_TOP_ROWS: Final = _object({"items": _list_of(_ROW), **_COVERAGE})
_GROUP: Final = _object({"value": _ANY, "count": _COUNT}, truncated={"const": True})
_GROUPS_PAGE: Final = _object({"items": _list_of(_GROUP), "cursor": _CURSOR, **_COVERAGE})
_INDEX_COUNTED: Final = _object({"count": _COUNT, **_COVERAGE})
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
    },
    waitsFor=_list_of({"type": "string"}),
)

PROBLEMS: Final[Responses] = {
    "default": _answer("A failure, with one of a closed set of reasons.", _PROBLEM, PROBLEM)
}
"""Answers that every request may get."""

_NOT_MODIFIED: Final[Responses] = {304: {"description": "The caller already has this version."}}
_BYTES: Final[Schema] = {"type": "string", "format": "binary"}
VALUE: Final[Responses] = {
    200: {
        "description": "The value.",
        "content": {
            JSON: {"schema": _ANY},
            BYTES: {"schema": _BYTES},
            AVRO: {"schema": _BYTES},
            AVRO_JSON: {"schema": _ANY},
        },
    },
    307: {"description": "`route=redirect`: the address of a node that hosts the key."},
    **_NOT_MODIFIED,
}
ITEMS: Final[Responses] = {200: _answer("One item for each key, in the same order.", _ITEMS)}
PAGE: Final[Responses] = {
    200: {
        "description": "A page of rows, or a stream with one row a line.",
        "content": {JSON: {"schema": _PAGE}, NDJSON: {"schema": _ROW}},
    }
}
VERSIONS: Final[Responses] = {
    200: {
        "description": "A page of versions, or a stream with one version a line.",
        "content": {JSON: {"schema": _VERSIONS_PAGE}, NDJSON: {"schema": _VERSION}},
    }
}
WINDOWS: Final[Responses] = {
    200: {
        "description": "A page of windows, or a stream with one window a line.",
        "content": {JSON: {"schema": _WINDOWS_PAGE}, NDJSON: {"schema": _WINDOW}},
    }
}
ENTRIES: Final[Responses] = {
    200: {
        "description": "A page of entries, or a stream with one entry a line.",
        "content": {JSON: {"schema": _ENTRIES_PAGE}, NDJSON: {"schema": _ENTRY}},
    }
}
TOP: Final[Responses] = {200: _answer("The best windows, the best one first.", _TOP)}
TOP_ROWS: Final[Responses] = {200: _answer("The first rows by the index, the best one first.", _TOP_ROWS)}
GROUPS: Final[Responses] = {
    200: {
        "description": "A page of values with their numbers of rows, or a stream with one value a line.",
        "content": {JSON: {"schema": _GROUPS_PAGE}, NDJSON: {"schema": _GROUP}},
    }
}
INDEX_COUNTED: Final[Responses] = {200: _answer("The number of rows.", _INDEX_COUNTED)}
CHANGES: Final[Responses] = {
    200: {
        "description": "Changes: a stream of events, or a page with one change a line and `next` at its end.",
        "content": {
            EVENTS: {"schema": {"type": "string"}},
            NDJSON: {"schema": {"oneOf": [_CHANGE, _COMPACTED, _NEXT]}},
        },
    }
}
WINDOW: Final[Responses] = {200: _answer("The window.", _WINDOW)}
COUNTED: Final[Responses] = {200: _answer("The number of keys.", _COUNTED)}
FILTER: Final[Responses] = {
    200: {"description": "A filter of keys, in segments.", "content": {BYTES: {"schema": _BYTES}}}
}
WRITTEN: Final[Responses] = {
    200: _answer(
        "Where each record was written. `min-position` takes `position`.",
        {"oneOf": [_POSITION, _list_of(_POSITION)]},
    )
}
READINESS: Final[Responses] = {
    200: _answer("Every replica that the node's pod serves is complete.", _READINESS),
    503: _answer("A replica is not complete yet, or the node drains.", _READINESS),
}
SOME_OBJECT: Final[Responses] = {200: _answer("The current state.", {"type": "object"})}
PLACEMENT: Final[Responses] = SOME_OBJECT | _NOT_MODIFIED
METRICS: Final[Responses] = {200: _answer("Metrics.", {"type": "string"}, "text/plain")}


def openapi_body(schema: Schema) -> dict[str, Any]:
    """Return `openapi_extra` for a required body."""
    bounds = "At most 2 MiB, and 20 000 arrays and objects, by default."
    return {"requestBody": {"required": True, "description": bounds, **_content(schema)}}


KEYS_BODY: Final = openapi_body(_object({"keys": _list_of(_KEY)}))
RECORDS_BODY: Final = openapi_body({"oneOf": [_RECORD, _list_of(_RECORD)]})

# Parameters.

POINT_OPTIONS: Final = READ_OPTION_NAMES
"""Options of a read: parameters, or headers with the prefix `Qt-`."""
MANY_OPTIONS: Final = (*READ_OPTION_NAMES, "partial")

_TEXT: Final[Schema] = {"type": "string"}


def _whole(minimum: int, maximum: int) -> Schema:
    return {"type": "integer", "minimum": minimum, "maximum": maximum}


_KEY_ENCODING: Final[Schema] = {"type": "string", "enum": ["text", "base64url"], "default": "text"}
_PARAMETERS: Final[dict[str, tuple[str, Schema]]] = {
    "consistency": (
        "How fresh the replica that answers must be.",
        {"type": "string", "enum": [c.value for c in Consistency]},
    ),
    "max-lag-ms": ("bounded, at-least: how many ms the replica may lag behind the log.", _whole(0, LAG_MAX)),
    "max-lag-records": (
        "bounded, at-least: how many records the replica may lag behind the log.",
        _whole(0, LAG_MAX),
    ),
    "min-position": (
        "at-least: `<partition>:<next offset>` that the replica must have reached. Repeatable.",
        {"type": "array", "items": {"type": "string", "pattern": "^[0-9]+:[0-9]+$"}},
    ),
    "deadline-ms": ("How long the answer may take.", {**_whole(1, DEADLINE_MS_MAX), "default": 2000}),
    "route": (
        "What to do when another node hosts the partition. `redirect` is for reads of one key.",
        {"type": "string", "enum": list(ROUTES), "default": ROUTES[0]},
    ),
    "partial": (
        "`allow`: answer without the partitions that cannot answer, and name them.",
        {"type": "string", "enum": ["refuse", "allow"], "default": "refuse"},
    ),
    "key-encoding": (
        "base64url: keys of this request are base64url of the record key's bytes.",
        _KEY_ENCODING,
    ),
    "from": ("The first key.", _TEXT),
    "to": ("The first key after the range.", _TEXT),
    "where": (
        "Conditions on the value: `status = 'paid' and (total >= 100 or customer.country in ('DE', 'FR'))`. A page may have "
        "fewer rows than `limit`, or none, and a cursor.",
        {"type": "string", "maxLength": TEXT_BYTES_MAX},
    ),
    "fields": (
        "The fields of the value to return, separated by commas: `status,customer.name`. A value that is no object has none.",
        {"type": "string", "maxLength": TEXT_BYTES_MAX},
    ),
    "probe": (
        "true: answer whether the key exists, with all headers and without its value.",
        {"type": "string", "enum": ["false", "true"], "default": "false"},
    ),
    "as-of": (
        "The moment of which the rows are wanted: positions `<partition>:<next offset>`, repeated or joined by commas, such as "
        "`positions` of an answer; or, for one key, a time that has passed, in ISO 8601 or milliseconds since 1970.",
        _TEXT,
    ),
    "rate": (
        "The rate of false positives.",
        {"type": "number", "minimum": RATE_MIN, "maximum": RATE_MAX, "default": RATE},
    ),
    "partition": (
        "The partition whose keys are wanted. Without it: those of all.",
        {"type": "integer", "minimum": 0},
    ),
    "limit": ("The most rows to return.", {"type": "integer", "minimum": 1, "default": 100}),
    "order": ("The order of the keys.", {"type": "string", "enum": ["asc", "desc"], "default": "asc"}),
    "cursor": ("The cursor of the previous page.", _TEXT),
    "by": ("The column whose results are compared.", _TEXT),
    "k": ("How many windows to return.", {**_whole(1, 1000), "default": 10}),
    "key": ("Only the changes of this key.", _TEXT),
    "prefix": ("Only the changes of keys that begin with these bytes.", _TEXT),
    "wait-ms": (
        "How long a page waits for the first change.",
        {**_whole(0, 60_000), "default": 10_000},
    ),
    "approximate": (
        "true: an estimate within some percent, which reads no rows.",
        {"type": "string", "enum": ["false", "true"], "default": "false"},
    ),
    "Idempotency-Key": (
        "A text of your own for this write, such as a UUID. A repeated request with it writes nothing again and gets the same "
        "answer.",
        {"type": "string", "minLength": 1, "maxLength": 255},
    ),
}


_AS_ELSEWHERE: Final[dict[str, tuple[str, Schema]]] = {}
WINDOW_TIMES: Final[dict[str, tuple[str, Schema]]] = {
    "from": ("The earliest start of a window: ISO 8601, or milliseconds since 1970.", _TEXT),
    "to": ("The first start after those: ISO 8601, or milliseconds since 1970.", _TEXT),
    "order": ("The order of keys and starts.", {"type": "string", "enum": ["asc", "desc"], "default": "asc"}),
}
"""How reads of windows understand parameters that other reads have too."""
ENTRY_TIMES: Final[dict[str, tuple[str, Schema]]] = {
    "from": ("The earliest time of an entry: ISO 8601, or milliseconds since 1970.", _TEXT),
    "to": ("The first time after those: ISO 8601, or milliseconds since 1970.", _TEXT),
    "order": (
        "The order of the times, and of the keys.",
        {"type": "string", "enum": ["asc", "desc"], "default": "asc"},
    ),
}
"""How reads of entries understand parameters that other reads have too."""
MOMENTS: Final[dict[str, tuple[str, Schema]]] = {
    "from": ("The first moment of which versions are wanted: a time, or positions. As in `as-of`.", _TEXT),
    "to": ("The first moment after those.", _TEXT),
    "order": (
        "desc: the newest version first.",
        {"type": "string", "enum": ["desc", "asc"], "default": "desc"},
    ),
}
"""How reads of versions understand parameters that other reads have too."""
INDEX_VALUES: Final[dict[str, tuple[str, Schema]]] = {
    "eq": ("The indexed value, as text.", _TEXT),
    "from": ("The first indexed value.", _TEXT),
    "to": ("The first indexed value after the range.", _TEXT),
    "order": (
        "The order of the indexed values, and of the keys of each.",
        {"type": "string", "enum": ["asc", "desc"], "default": "asc"},
    ),
    "k": ("How many rows to return.", {**_whole(1, 1000), "default": 10}),
}
"""How reads by an index understand parameters that other reads have too."""


def of_indexes(names: Iterable[str]) -> dict[str, tuple[str, Schema]]:
    """Return what the parameters of reads by an index mean in a view with these indexes."""
    index = ("The name of the index.", {"type": "string", "enum": list(names)})
    return {**INDEX_VALUES, "name": index, "by": index}


CHANGES_FROM: Final[dict[str, tuple[str, Schema]]] = {
    "from": (
        "The id of an event, or `next` of a page, to continue there; `latest`; or `start`: all rows first.",
        {"type": "string", "default": "latest"},
    ),
}
TOP_ORDER: Final[dict[str, tuple[str, Schema]]] = {
    "order": (
        "desc: the greatest results first.",
        {"type": "string", "enum": ["desc", "asc"], "default": "desc"},
    ),
}


def openapi_parameters(
    *names: str, path: str = "", start: bool = False, about: Mapping[str, tuple[str, Schema]] = _AS_ELSEWHERE
) -> Schema:
    """Return `openapi_extra` for a route's parameters. `path` names the part of its path that is a key, and `start` says that
    the start of a window follows. `about` describes parameters that mean something else than elsewhere."""
    description, schema = about.get(path, ("Percent-encoded bytes.", _TEXT))
    in_path = [
        {"name": path, "in": "path", "required": True, "schema": schema, "description": description}
    ] * bool(path)
    if start:
        in_path.append(
            {
                "name": "start",
                "in": "path",
                "required": True,
                "schema": _TEXT,
                "description": "When the window starts: ISO 8601, or milliseconds since 1970.",
            }
        )
    in_query = [
        {
            "name": name,
            "in": "header" if name[0].isupper() else "query",
            "required": False,
            "description": description,
            "schema": schema,
        }
        for name, (description, schema) in ((name, about.get(name) or _PARAMETERS[name]) for name in names)
    ]
    return {"parameters": in_path + in_query}
