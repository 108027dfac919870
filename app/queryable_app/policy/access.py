"""Decide what a caller may do: from the claims of a verified token and the rules of the view to operations and key prefixes.

Strategy: what no rule grants is refused. The prefixes of all rules that apply are joined. If the value of a claim could widen a
prefix, the rule does not apply.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from queryable_app.config.auth import CERTIFICATE_SUBJECT, KeyPrefix, OperationName, Rule

SUBJECT_CHARS_MAX: Final = 200

_VALUE_CHARS_MAX: Final = 512
_CLAIM_VALUES_MAX: Final = 1000
_ALL_KEYS: Final = (b"",)
_CONTROLS: Final = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class Access:
    """What one caller may do, until its token expires."""

    subject: str
    """What the token, or else the certificate, says the caller is. It is for the log."""
    until: float
    """In seconds since 1970."""
    prefixes: Mapping[OperationName, tuple[bytes, ...]]
    """By operation, the prefixes of the keys; an empty one stands for all keys. An operation that is missing is refused."""

    def may(self, operation: OperationName) -> bool:
        return operation in self.prefixes

    def is_limited(self, operation: OperationName) -> bool:
        """Return whether the operation is allowed, but not on all keys."""
        return self.prefixes.get(operation, _ALL_KEYS) != _ALL_KEYS

    def may_with_key(self, operation: OperationName, key: bytes) -> bool:
        return key.startswith(self.prefixes.get(operation, ()))


def access_of(
    claims: Mapping[str, Any], until: float, rules: Sequence[Rule], has_token: bool = True
) -> Access:
    """Return what the rules grant to a caller with these claims, of its token, its certificate or both."""
    granted: dict[OperationName, set[bytes]] = {}
    for rule in rules:
        if not (has_token if rule.claim is None else _applies(rule, claims)):
            continue
        prefix = b"" if rule.key_prefix is None else render_prefix(rule.key_prefix, claims)
        if prefix is not None:
            for operation in rule.allow:
                granted.setdefault(operation, set()).add(prefix)
    subject = claims.get("sub", claims.get(CERTIFICATE_SUBJECT))
    return Access(
        subject[:SUBJECT_CHARS_MAX] if isinstance(subject, str) else "",
        until,
        {operation: shortest(prefixes) for operation, prefixes in granted.items()},
    )


def shortest(prefixes: Iterable[bytes]) -> tuple[bytes, ...]:
    """Return the prefixes in order, without those that another one begins."""
    kept: list[bytes] = []
    for prefix in sorted(prefixes):
        if not kept or not prefix.startswith(kept[-1]):
            kept.append(prefix)
    return tuple(kept)


def render_prefix(prefix: KeyPrefix, claims: Mapping[str, Any]) -> bytes | None:
    """Return the prefix with the values of the claims. None: a value is missing, or could widen the prefix."""
    parts = [prefix.texts[0]]
    for claim, separator in zip(prefix.claims, prefix.texts[1:], strict=True):
        value = _text(claims.get(claim))
        if not value or len(value) > _VALUE_CHARS_MAX or separator[0] in value or _CONTROLS.search(value):
            return None
        parts += (value, separator)
    try:
        return "".join(parts).encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return None


def _applies(rule: Rule, claims: Mapping[str, Any]) -> bool:
    assert rule.claim is not None
    value = claims.get(rule.claim)
    if rule.comparison == "equals":
        return _text(value) == rule.value
    values = value[:_CLAIM_VALUES_MAX] if isinstance(value, list) else [value]
    texts = [text for each in values if (text := _text(each)) is not None]
    if rule.comparison == "contains":
        return rule.value in texts or (isinstance(value, str) and rule.value in value.split(" "))
    pattern = _glob(rule.value)
    return any(len(text) <= _VALUE_CHARS_MAX and pattern.fullmatch(text) for text in texts)


def _text(value: Any) -> str | None:
    """Return a claim's value as text. None: it has no text, or no one text."""
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None


@lru_cache(128)
def _glob(pattern: str) -> re.Pattern[str]:
    """Return the pattern in which `*` stands for any characters and `?` for one."""
    # Neighbouring stars are one, and each takes as little as it can and gives nothing back: no text takes long.
    pieces = [_literal(piece) for piece in re.split(r"\*+", pattern)]
    head, *rest = pieces
    if not rest:
        return re.compile(head, re.DOTALL)
    *middle, tail = rest
    return re.compile(head + "".join(f"(?>.*?{piece})" for piece in middle) + f".*{tail}", re.DOTALL)


def _literal(piece: str) -> str:
    return "".join("." if char == "?" else re.escape(char) for char in piece)
