"""Encode and parse what the check of a view reports to the operator: the format of group keys, or a permanent failure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, get_args

from queryable_app.config.rekey import GroupKeyFormat
from queryable_app.wire.ingest_failures import IngestFailure, one_line

_FORMAT: Final = "groupKeyFormat"
_BYTES_MAX: Final = 4096  # what Kubernetes keeps of a container's last words


def accepted(group_key_format: str) -> str:
    """Return the report of a check that accepted the view. Without a format, the keys are those of the records."""
    return json.dumps({_FORMAT: group_key_format})


def refused(failure: IngestFailure) -> str:
    """Return the report of a check that refused the view, with as much of the message as fits."""
    message = one_line(failure.message)
    while True:
        report = json.dumps(IngestFailure(failure.reason, message).to_json(), ensure_ascii=False)
        if len(report.encode()) <= _BYTES_MAX:
            return report
        message = message[: len(message) * 3 // 4]


def reported_format(raw: Any) -> GroupKeyFormat | None:
    """Return the format of group keys in a parsed report, or None if it has none."""
    found = raw.get(_FORMAT) if isinstance(raw, Mapping) else None
    known: tuple[GroupKeyFormat, ...] = get_args(GroupKeyFormat)
    return next((each for each in known if each == found), None)
