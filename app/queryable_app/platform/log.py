"""What happened, one line an event, on standard error.

For machines a line is one JSON object; for a person at a terminal it is a short sentence. There is no line per request,
and no field may hold a secret.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime


def event(name: str, **fields: object) -> None:
    now = datetime.now(UTC)
    if sys.stderr.isatty():
        details = " ".join(f"{key}={value}" for key, value in fields.items())
        line = f"{now.astimezone():%H:%M:%S} {name:<14} {details}".rstrip()
    else:
        time = now.isoformat(timespec="milliseconds")
        line = json.dumps({"time": time, "event": name, **fields}, default=str)
    # One write, so that lines of several threads do not mix. A log that cannot be written must not stop the node.
    try:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
    except OSError:
        pass
