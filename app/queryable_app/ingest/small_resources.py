"""Make short files in place of long ones that Spark and Hadoop read at every start, and of which a view needs little.

The JVM takes a file of its libraries from the first jar that has one of that name, and the writer's jar is the first.
Without these files a start parses 1.5 MB more of XML and JSON, with a parser that the JVM has just begun to compile.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

_NO_DEFAULTS: Final = b"<?xml version='1.0'?><configuration/>"
"""Settings of Hadoop that are not named have a default in Hadoop's code. A view uses local files alone."""

REBASED: Final = ("gregorian-julian-rebase-micros.json", "julian-gregorian-rebase-micros.json")
"""The files of Spark that tell by how much times of old calendars differ, by time zone."""


def small_resources(rebased: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the short files by their names. `rebased` are Spark's own files of `REBASED`."""
    defaults = dict.fromkeys(("core-default.xml", "mapred-default.xml", "yarn-default.xml"), _NO_DEFAULTS)
    return defaults | {name: _rebased_in_utc(content) for name, content in rebased.items()}


def _rebased_in_utc(content: bytes) -> bytes:
    """Return the record of UTC, up to the last switch of any time zone. For the other zones Spark asks Java."""
    records: list[dict[str, Any]] = json.loads(content)
    (utc,) = (record for record in records if record["tz"] == "UTC")
    last = max(record["switches"][-1] for record in records)
    if utc["switches"][-1] < last:  # after this one Spark looks into no record
        utc["switches"].append(last)
        utc["diffs"].append(utc["diffs"][-1])
    return json.dumps([utc]).encode()
