"""Encode and parse permanent failures of ingest, for serve and the operator.

A failure without a reason is temporary, and ingest retries. One with a reason is permanent until the spec, the image or the
machine changes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

Cause = Literal["spec", "node"]

REASONS: Final[Mapping[str, Cause]] = {
    "TransformRefused": "spec",
    "SchemaRefused": "spec",
    "TransformFailed": "spec",
    "KafkaSettingsRefused": "spec",
    "WriterBroken": "node",
    "ClassMissing": "node",
    "JavaMissing": "node",
    "DescriptorLimitTooLow": "node",
}
"""`spec`: every node with this spec fails in the same way. `node`: the image or the machine may be the cause."""

MESSAGE_CHARACTERS_MAX: Final = 2000
_REASON: Final = re.compile(r"[A-Z][A-Za-z]{0,39}")


@dataclass(frozen=True, slots=True)
class IngestFailure:
    """Describe a permanent failure."""

    reason: str
    """One of `REASONS`, or a reason of a newer release."""

    message: str

    @property
    def caused_by_spec(self) -> bool:
        """Return whether the spec alone is the cause, which only a known reason tells."""
        return REASONS.get(self.reason) == "spec"

    def to_json(self) -> dict[str, str]:
        return {"reason": self.reason, "message": self.message}


def parse_failure(raw: Any) -> IngestFailure | None:
    """Return the failure that another process wrote as JSON, or None if it is malformed."""
    if not isinstance(raw, Mapping):
        return None
    reason, message = raw.get("reason"), raw.get("message")
    if not isinstance(reason, str) or not isinstance(message, str) or not _REASON.fullmatch(reason):
        return None
    return IngestFailure(reason, one_line(message))


def one_line(text: str) -> str:
    """Return a message as one line, for columns and conditions, without the SQL that Spark appends."""
    return " ".join(text.split("\n== SQL")[0].split())[:MESSAGE_CHARACTERS_MAX]
