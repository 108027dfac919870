"""Fetch an issuer's public keys (JWKS), and follow their changes.

Strategy: a fetch is bounded in bytes and time, follows no redirect and uses no proxy, and its content is checked before it
replaces the keys. While the issuer is unreachable or answers nonsense, the last good keys stay. A token with an unknown key id
causes a fetch, at most one in `_UNKNOWN_KEY_SECONDS`, so that callers cannot make a node call the issuer often.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, Final

import httpx
import jwt

from queryable_app.platform.log import event
from queryable_app.policy.tokens import VerificationKey
from queryable_app.serve.auth.key_source import KeySource
from queryable_app.serve.base.background import in_thread

DOCUMENT_BYTES_MAX: Final = 256 * 1024
KEYS_MAX: Final = 100
_FETCH_SECONDS_MAX: Final = 5.0
_REFRESH_SECONDS: Final = 300.0
_RETRY_SECONDS: Final = 5.0
_UNKNOWN_KEY_SECONDS: Final = 10.0
_RSA_BITS: Final = range(2048, 8193)
_ALGORITHM_OF: Final = {("RSA", None): "RS256", ("EC", "P-256"): "ES256", ("OKP", "Ed25519"): "EdDSA"}
"""By the type and the curve of a key."""


class KeysRefused(Exception):
    """Say why an answer is no set of keys."""


class IssuerKeys(KeySource):
    """Keep the keys of one issuer."""

    def __init__(self, url: str, ca_pem: str = "", clock: Callable[[], float] = monotonic) -> None:
        super().__init__()
        self._url = url
        self._ca_pem = ca_pem
        self._clock = clock
        self._http: httpx.AsyncClient | None = None
        self._fetching: asyncio.Task[bool] | None = None
        self._fetched_at = -_UNKNOWN_KEY_SECONDS
        self._problem = ""

    def may_fetch(self) -> bool:
        under_way = self._fetching is not None and not self._fetching.done()
        return under_way or self._clock() - self._fetched_at >= _UNKNOWN_KEY_SECONDS

    async def fetch(self) -> None:
        await self._fetch()

    async def _run(self) -> None:
        while True:
            good = await self._fetch()
            await asyncio.sleep(_REFRESH_SECONDS if good else _RETRY_SECONDS)

    async def _close(self) -> None:
        if self._fetching is not None:
            self._fetching.cancel()
            with suppress(asyncio.CancelledError):
                await self._fetching
        if self._http is not None:
            await self._http.aclose()

    async def _fetch(self) -> bool:
        """Join the fetch that is under way, or begin one. A caller that leaves does not end it for the others."""
        if self._fetching is None or self._fetching.done():
            self._fetched_at = self._clock()
            self._fetching = asyncio.create_task(self._fetch_now())
        return await asyncio.shield(self._fetching)

    async def _fetch_now(self) -> bool:
        try:
            async with asyncio.timeout(_FETCH_SECONDS_MAX):
                document = await self._document()
            keys = await in_thread(parse_keys, document)
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, OSError, KeysRefused) as error:
            self._note(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
            return False
        self._note("")
        if {key.identity for key in keys} != {key.identity for key in self.keys}:
            event("auth-keys-changed", keys=len(keys))
            self._replace(keys)
        return True

    async def _document(self) -> bytes:
        if self._http is None:
            context = await in_thread(_tls_context, self._ca_pem)
            self._http = httpx.AsyncClient(
                verify=context, trust_env=False, follow_redirects=False, timeout=_FETCH_SECONDS_MAX
            )
        # Kubernetes' API server offers the first only, and other issuers the second.
        headers = {"accept": "application/jwk-set+json, application/json", "accept-encoding": "identity"}
        async with self._http.stream("GET", self._url, headers=headers) as answer:
            if answer.status_code != 200:
                raise KeysRefused(f"the issuer answers {answer.status_code}, and not 200")
            document = bytearray()
            async for chunk in answer.aiter_raw():
                document += chunk
                if len(document) > DOCUMENT_BYTES_MAX:
                    raise KeysRefused(f"the issuer's answer is larger than {DOCUMENT_BYTES_MAX} bytes")
        return bytes(document)

    def _note(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            if problem:
                event("auth-keys-unavailable", url=self._url, problem=problem, keys=len(self.keys))


def parse_keys(document: bytes) -> Sequence[VerificationKey]:
    """Return the keys of a JWKS that can verify tokens here. Raise KeysRefused if there are none."""
    try:
        raw = json.loads(document.decode())
    except (ValueError, RecursionError):
        raise KeysRefused("the issuer's answer is not JSON") from None
    listed = raw.get("keys") if isinstance(raw, dict) else None
    if not isinstance(listed, list) or len(listed) > KEYS_MAX:
        raise KeysRefused(f'the issuer\'s answer has no list "keys" of at most {KEYS_MAX} keys')
    keys = [key for each in listed if isinstance(each, dict) and (key := _key(each)) is not None]
    if not keys:
        raise KeysRefused("the issuer's answer has no key for RS256, ES256 or EdDSA")
    return keys


def _key(raw: Mapping[str, Any]) -> VerificationKey | None:
    """Return a key; None if it is for something else. A symmetric one is never taken: the answer is public."""
    kind, curve, key_id = raw.get("kty"), raw.get("crv"), raw.get("kid")
    if not isinstance(kind, str) or not isinstance(curve, str | None) or not isinstance(key_id, str | None):
        return None
    algorithm = _ALGORITHM_OF.get((kind, curve))
    operations = raw.get("key_ops", ["verify"])
    if (
        algorithm is None
        or raw.get("alg", algorithm) != algorithm
        or raw.get("use", "sig") != "sig"
        or not isinstance(operations, list)
        or "verify" not in operations
    ):
        return None
    public = {name: raw[name] for name in ("kty", "crv", "n", "e", "x", "y") if name in raw}
    try:
        parsed: Any = jwt.PyJWK(public, algorithm)
    except (jwt.PyJWTError, ValueError, TypeError):
        return None
    if algorithm == "RS256" and parsed.key.key_size not in _RSA_BITS:
        return None
    return _issuer_key(algorithm, key_id, parsed, json.dumps(public, sort_keys=True))


def _issuer_key(algorithm: str, key_id: str | None, parsed: Any, public: str) -> VerificationKey:
    def verify(signed: bytes, signature: bytes) -> bool:
        return bool(parsed.Algorithm.verify(signed, parsed.key, signature))

    return VerificationKey(algorithm, key_id, verify, (algorithm, key_id, public))


def _tls_context(ca_pem: str) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=ca_pem or None)
