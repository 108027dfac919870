"""Authenticate callers by their bearer tokens, and remember the verified ones.

Strategy: a verified token is remembered by its SHA-256 digest until it expires, so each costs one signature. Bad tokens are not
remembered: they would push out good ones. They cost little, since the cheap checks come first, and the time for signatures of bad
tokens is bounded: beyond it, a connection that has sent a bad token gets 429 without another look, and other connections go on.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from hashlib import sha256
from typing import Final, NoReturn

from queryable_app.config.auth import AuthSpec
from queryable_app.errors import Failure, Reason
from queryable_app.policy.access import Access, access_of
from queryable_app.policy.certificates import Certificate, joined_claims
from queryable_app.policy.tokens import (
    Expectations,
    TokenRefused,
    Why,
    keys_for,
    parse_token,
    verify_claims,
    verify_signature,
)
from queryable_app.serve.auth.key_source import KeySource

TOKENS_MAX: Final = 10_000
_WINDOW_SECONDS: Final = 0.1
_BAD_SECONDS_MAX: Final = 0.02  # of CPU in each window, for signatures of bad tokens
_BEARER: Final = "bearer "


class KeysMayBeOld(Exception):
    """Say that the token's key is unknown, and that a fetch of the keys may bring it."""

    def __init__(self, refusal: TokenRefused) -> None:
        super().__init__()
        self.refusal = refusal


class Authenticator:
    """Authenticate the callers of one node."""

    def __init__(
        self,
        spec: AuthSpec,
        source: KeySource,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.spec = spec
        self.source = source
        self.clock = clock
        self.on_change: list[Callable[[], None]] = []
        """Called when remembered tokens may no longer count."""
        self._expected = Expectations(spec.issuer, spec.audience, spec.clock_skew_seconds)
        self._accesses: OrderedDict[bytes, Access] = OrderedDict()
        self._window = 0.0
        self._bad_seconds = 0.0
        source.on_change = self._forget

    def _forget(self) -> None:
        """Forget the verified tokens: the key of one may be gone."""
        self._accesses.clear()
        for listener in self.on_change:
            listener()

    def authenticate(
        self, authorization: str | None, suspect: bool = False, certificate: Certificate | None = None
    ) -> Access:
        """Return what the bearer of a token, of a certificate or of both may do. `suspect`: the connection has sent bad tokens
        before.

        Raise TokenRefused, KeysMayBeOld, or Failure if there is no time for more bad tokens, or there are no keys."""
        now = self.clock()
        if certificate is not None and (not self.spec.uses_certificates or now >= certificate.until):
            certificate = None
        if certificate is not None and authorization is None:
            return self._of_certificate(certificate)
        token = bearer_token(authorization)
        digest = sha256(token).digest()
        if certificate is not None:
            digest += certificate.digest
        access = self._accesses.get(digest)
        if access is not None:
            if now < access.until:
                self._accesses.move_to_end(digest)
                return access
            del self._accesses[digest]
        parsed = parse_token(token)
        if not self.source.keys:
            self._refuse_without_keys()
        try:
            keys = keys_for(parsed, self.source.keys)
        except TokenRefused as refusal:
            if refusal.why is Why.UNKNOWN_KEY and self.source.may_fetch():
                raise KeysMayBeOld(refusal) from None
            raise
        self._require_time(suspect)
        began = time.thread_time()  # to which a busy machine adds nothing
        try:
            verify_signature(parsed, keys)
            verified = verify_claims(parsed, self._expected, now)
        except TokenRefused:
            self._bad_seconds += time.thread_time() - began
            raise
        until = verified.until if certificate is None else min(verified.until, certificate.until)
        access = access_of(joined_claims(verified.claims, certificate), until, self.spec.rules)
        self._accesses[digest] = access
        if len(self._accesses) > TOKENS_MAX:
            self._accesses.popitem(last=False)
        return access

    def _of_certificate(self, certificate: Certificate) -> Access:
        """Return what a certificate allows without a token. If it allows nothing, a token is missing."""
        access = access_of(certificate.claims, certificate.until, self.spec.rules, has_token=False)
        if not access.prefixes:
            raise TokenRefused(
                Why.MISSING, "the request has no token, and no rule applies to the client's certificate"
            )
        return access

    async def authenticate_with_fetch(
        self, authorization: str | None, certificate: Certificate | None = None
    ) -> Access:
        """Do as `authenticate`. If the token's key is unknown, look once whether the issuer has it by now."""
        try:
            return self.authenticate(authorization, certificate=certificate)
        except KeysMayBeOld:
            await self.source.fetch()
        try:
            return self.authenticate(authorization, certificate=certificate)
        except KeysMayBeOld as unknown:
            raise unknown.refusal from None

    def _refuse_without_keys(self) -> NoReturn:
        if self.source.may_fetch():
            raise KeysMayBeOld(TokenRefused(Why.UNKNOWN_KEY, "the issuer's keys are not known yet"))
        raise Failure(
            Reason.NOT_AVAILABLE,
            "the keys of the token's issuer could not be fetched yet",
            "retry; the node's log says why under auth-keys-unavailable",
            retry_after_ms=1000,
        )

    def _require_time(self, suspect: bool) -> None:
        now = time.monotonic()
        if now - self._window >= _WINDOW_SECONDS:
            self._window, self._bad_seconds = now, 0.0
        if self._bad_seconds >= (_BAD_SECONDS_MAX if suspect else 2 * _BAD_SECONDS_MAX):
            raise Failure(
                Reason.OVERLOADED,
                "the node verifies no more unknown tokens at present, since too many were wrong",
                "retry later, on a connection that has sent no wrong token",
                retry_after_ms=1000,
            )


def bearer_token(authorization: str | None) -> bytes:
    """Return the token of an `Authorization` header. Raise TokenRefused."""
    if authorization is None:
        raise TokenRefused(Why.MISSING, "the request has no token")
    if authorization[: len(_BEARER)].lower() != _BEARER:
        raise TokenRefused(Why.SCHEME, "the Authorization header is not of the scheme Bearer")
    return authorization[len(_BEARER) :].strip().encode("latin-1", "replace")


def unauthenticated(refusal: TokenRefused) -> Failure:
    """Return the failure of a request whose token is refused."""
    challenge = 'Bearer realm="queryable-topic"'
    if refusal.why is not Why.MISSING:
        challenge += f', error="invalid_token", error_description="{refusal.sentence}"'
    return Failure(
        Reason.UNAUTHENTICATED,
        refusal.sentence,
        "send `Authorization: Bearer TOKEN` with a token of the view's issuer",
        challenge=challenge,
    )
