"""Verify JSON Web Tokens: what a token says counts only after its form, its key, its signature and its claims are checked.

Strategy: cheap checks come first: size, shape, algorithm, key id, and then the signature. A key is made for one algorithm, and
only keys of the token's algorithm are tried, so a token cannot choose how it is verified. The adapters of `serve/auth` make the
keys; this file computes with what they give it, and reads no clock.
"""

from __future__ import annotations

import json
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import isfinite
from typing import Any, Final

TOKEN_BYTES_MAX: Final = 8192
ALGORITHMS: Final = ("HS256", "RS256", "ES256", "EdDSA")

_HEADER_BYTES_MAX: Final = 2048
_KEY_ID_CHARS_MAX: Final = 256
_AUDIENCES_MAX: Final = 100
_TOKEN: Final = re.compile(rb"([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)")


class Why(Enum):
    """Name each reason why a token is refused, as `qt_refused_total` counts it."""

    MISSING = "token_missing"
    SCHEME = "token_scheme"
    TOO_LARGE = "token_too_large"
    MALFORMED = "token_malformed"
    ALGORITHM = "token_algorithm"
    UNKNOWN_KEY = "token_unknown_key"
    SIGNATURE = "token_signature"
    CLAIMS = "token_claims"
    EXPIRED = "token_expired"
    NOT_YET_VALID = "token_not_yet_valid"
    ISSUER = "token_issuer"
    AUDIENCE = "token_audience"


class TokenRefused(Exception):
    """Say why a token is refused. The sentence holds nothing of the token but what its signature covers."""

    def __init__(self, why: Why, sentence: str) -> None:
        super().__init__(sentence)
        self.why = why
        self.sentence = sentence


@dataclass(frozen=True, slots=True)
class VerificationKey:
    """A key, with the one algorithm that it is for."""

    algorithm: str
    key_id: str | None
    verify: Callable[[bytes, bytes], bool] = field(repr=False)
    """From the signed bytes and a signature to whether they belong together."""
    identity: tuple[str | None, ...] = ()
    """What tells the key from others: its public parts, or nothing."""


@dataclass(frozen=True, slots=True)
class ParsedToken:
    """A token whose form is right, and whose signature is not verified yet."""

    algorithm: str
    key_id: str | None
    signed: bytes
    signature: bytes
    payload: bytes


@dataclass(frozen=True, slots=True)
class Expectations:
    """What the claims of a token must say. An empty text: anything."""

    issuer: str = ""
    audience: str = ""
    clock_skew_seconds: int = 30


@dataclass(frozen=True, slots=True)
class VerifiedClaims:
    claims: Mapping[str, Any]
    until: float
    """The time, in seconds since 1970, from which on the token is refused."""


def parse_token(token: bytes) -> ParsedToken:
    """Check the form of a token. Raise TokenRefused."""
    if len(token) > TOKEN_BYTES_MAX:
        raise TokenRefused(Why.TOO_LARGE, f"the token is longer than {TOKEN_BYTES_MAX} bytes")
    match = _TOKEN.fullmatch(token)
    if match is None:
        raise TokenRefused(Why.MALFORMED, "the token is not three parts of base64url with dots between them")
    if len(match[1]) > _HEADER_BYTES_MAX:
        raise TokenRefused(Why.TOO_LARGE, f"the token's header is longer than {_HEADER_BYTES_MAX} bytes")
    header = _object(_decoded(match[1]), "header")
    if "crit" in header or "b64" in header:
        raise TokenRefused(Why.MALFORMED, "the token's header requires an extension, and there is none")
    algorithm, key_id = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise TokenRefused(Why.ALGORITHM, f"the token's algorithm is not one of {', '.join(ALGORITHMS)}")
    if key_id is not None and not (isinstance(key_id, str) and 0 < len(key_id) <= _KEY_ID_CHARS_MAX):
        raise TokenRefused(Why.MALFORMED, "the token's key id is not a short text")
    return ParsedToken(algorithm, key_id, token[: match.end(2)], _decoded(match[3]), _decoded(match[2]))


def keys_for(token: ParsedToken, keys: Sequence[VerificationKey]) -> Sequence[VerificationKey]:
    """Return the keys to try. Raise TokenRefused if no key has the token's algorithm, or its key id."""
    of_algorithm = [key for key in keys if key.algorithm == token.algorithm]
    if not of_algorithm:
        raise TokenRefused(Why.ALGORITHM, "the view has no key for the token's algorithm")
    if token.key_id is None:
        if len({key.key_id for key in of_algorithm}) > 1:
            raise TokenRefused(Why.UNKNOWN_KEY, "the token names no key, and the issuer has several")
        return of_algorithm
    # A key without an id, such as one of a Secret, is tried for every id.
    named = [key for key in of_algorithm if key.key_id in (None, token.key_id)]
    if not named:
        raise TokenRefused(Why.UNKNOWN_KEY, "the issuer has no key with the token's key id")
    return named


def verify_signature(token: ParsedToken, keys: Sequence[VerificationKey]) -> None:
    """Raise TokenRefused unless one of the keys made the signature."""
    if not any([key.verify(token.signed, token.signature) for key in keys]):
        raise TokenRefused(Why.SIGNATURE, "the token's signature is not of a key of this view")


def verify_claims(token: ParsedToken, expected: Expectations, now: float) -> VerifiedClaims:
    """Check the claims of a token whose signature is verified. Raise TokenRefused."""
    claims = _object(token.payload, "payload")
    skew = expected.clock_skew_seconds
    expires, begins = _time(claims, "exp"), _time(claims, "nbf")
    if expires is None:
        raise TokenRefused(Why.CLAIMS, "the token has no expiry (exp)")
    if now >= expires + skew:
        raise TokenRefused(Why.EXPIRED, "the token has expired")
    if begins is not None and now < begins - skew:
        raise TokenRefused(Why.NOT_YET_VALID, "the token is not valid yet (nbf)")
    if expected.issuer and claims.get("iss") != expected.issuer:
        raise TokenRefused(Why.ISSUER, "the token is of another issuer (iss)")
    if expected.audience and expected.audience not in _audiences(claims):
        raise TokenRefused(Why.AUDIENCE, "the token is for another audience (aud)")
    return VerifiedClaims(claims, expires + skew)


def _audiences(claims: Mapping[str, Any]) -> Sequence[Any]:
    audience = claims.get("aud")
    if isinstance(audience, str):
        return (audience,)
    return audience[:_AUDIENCES_MAX] if isinstance(audience, list) else ()


def _time(claims: Mapping[str, Any], name: str) -> float | None:
    """Return a time in seconds since 1970; None if the claim is not there."""
    value = claims.get(name)
    if value is None and name not in claims:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e15:
        raise TokenRefused(Why.CLAIMS, f"the token's {name} is not a time in seconds since 1970")
    seconds = float(value)
    assert isfinite(seconds)
    return seconds


def _decoded(part: bytes) -> bytes:
    """Decode base64url. Refuse a text that another text decodes to as well."""
    if len(part) % 4 == 1:
        raise TokenRefused(Why.MALFORMED, "a part of the token is not base64url")
    decoded = urlsafe_b64decode(part + b"=" * (-len(part) % 4))
    if urlsafe_b64encode(decoded).rstrip(b"=") != part:
        raise TokenRefused(Why.MALFORMED, "a part of the token is not base64url")
    return decoded


def _object(text: bytes, what: str) -> dict[str, Any]:
    """Parse a JSON object. Refuse a name that is there twice: two readers could take different values."""
    try:
        value = json.loads(text.decode(), object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise TokenRefused(Why.MALFORMED, f"the token's {what} is not a JSON object with each name once")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a name is there twice")
    return members


def _refuse_constant(name: str) -> Any:
    raise ValueError(name)
