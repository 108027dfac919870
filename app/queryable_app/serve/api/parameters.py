"""Every parameter that a request may have: what it means, as OpenAPI says it.

A route lists the names that it takes. The same list is its documentation and what its requests are checked against.
"""

from __future__ import annotations

from typing import Any, Final

from queryable_app.policy.freshness import DEADLINE_MS_MAX, LAG_MAX, READ_OPTION_NAMES, ROUTES, Consistency

POINT_OPTIONS: Final = READ_OPTION_NAMES
"""May be parameters or headers with the prefix `Qt-`."""
MANY_OPTIONS: Final = (*READ_OPTION_NAMES, "partial")

_TEXT: Final = {"type": "string"}


def _whole(minimum: int, maximum: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": minimum, "maximum": maximum}


_ENCODING: Final = {"type": "string", "enum": ["text", "base64url"], "default": "text"}
_PARAMETERS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "consistency": (
        "How fresh the copy that answers must be.",
        {"type": "string", "enum": [c.value for c in Consistency]},
    ),
    "max-lag-ms": ("bounded, at-least: how many ms the copy may be behind the log.", _whole(0, LAG_MAX)),
    "max-lag-records": (
        "bounded, at-least: how many records the copy may be behind the log.",
        _whole(0, LAG_MAX),
    ),
    "min-position": (
        "at-least: `<partition>:<next offset>` that the copy must have reached. Repeatable.",
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
    "key-encoding": ("base64url: keys of this request are base64url of the record key's bytes.", _ENCODING),
    "from": ("The first key.", _TEXT),
    "to": ("The first key behind the range.", _TEXT),
    "limit": ("Rows at most.", {"type": "integer", "minimum": 1, "default": 100}),
    "order": ("Of the keys.", {"type": "string", "enum": ["asc", "desc"], "default": "asc"}),
    "cursor": ("From the page before.", _TEXT),
    "approximate": (
        "true: an estimate within some percent, at no cost.",
        {"type": "string", "enum": ["false", "true"], "default": "false"},
    ),
}


def parameters(*names: str, path: str = "") -> dict[str, Any]:
    """`openapi_extra` of a route; `path` names the part of its path that is a key."""
    in_path = (
        [
            {
                "name": path,
                "in": "path",
                "required": True,
                "schema": _TEXT,
                "description": "Percent-encoded bytes.",
            }
        ]
        if path
        else []
    )
    in_query = [
        {"name": name, "in": "query", "required": False, "description": about, "schema": schema}
        for name, (about, schema) in ((name, _PARAMETERS[name]) for name in names)
    ]
    return {"parameters": in_path + in_query}
