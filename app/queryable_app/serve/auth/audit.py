"""Log each refused request and each write as one structured line, and count refusals by reason.

Strategy: a token bucket bounds the lines, so that callers cannot fill the log; the next line says how many were left out. A line
has the subject of the token and the operation, and of the key a digest, unless the resource asks for keys as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from hashlib import sha256
from time import monotonic
from typing import Final

from queryable_app.platform.log import event

LINES_A_SECOND: Final = 20
LINES_BURST: Final = 200
_KEYS_SHOWN_MAX: Final = 3
_KEY_BYTES_SHOWN_MAX: Final = 128


class Audit:
    """Write the audit log of one node."""

    def __init__(self, plain_keys: bool = False, clock: Callable[[], float] = monotonic) -> None:
        self.refused_by_reason: Counter[str] = Counter()
        self._plain_keys = plain_keys
        self._clock = clock
        self._left = float(LINES_BURST)
        self._filled_at = clock()
        self._left_out = 0

    def refused(
        self, reason: str, operation: str, why: str, subject: str = "", key: bytes | None = None
    ) -> None:
        self.refused_by_reason[reason] += 1
        keys = () if key is None else (key,)
        self._log(
            "audit-refused",
            reason=reason,
            operation=operation,
            why=why,
            subject=subject,
            keys=self._shown(keys),
        )

    def wrote(self, operation: str, subject: str, keys: Sequence[bytes]) -> None:
        """Log a write that is allowed. It is logged before Kafka has acknowledged it."""
        self._log(
            "audit-write", operation=operation, subject=subject, records=len(keys), keys=self._shown(keys)
        )

    def _shown(self, keys: Sequence[bytes]) -> list[str]:
        shown = keys[:_KEYS_SHOWN_MAX]
        if self._plain_keys:
            return [key[:_KEY_BYTES_SHOWN_MAX].decode(errors="backslashreplace") for key in shown]
        return [f"sha256:{sha256(key).hexdigest()[:16]}" for key in shown]

    def _log(self, name: str, **fields: object) -> None:
        now = self._clock()
        self._left = min(LINES_BURST, self._left + (now - self._filled_at) * LINES_A_SECOND)
        self._filled_at = now
        if self._left < 1:
            self._left_out += 1
            return
        self._left -= 1
        left_out, self._left_out = self._left_out, 0
        more = {"leftOut": left_out} if left_out else {}
        event(name, **{name: value for name, value in fields.items() if value not in ("", [])}, **more)
