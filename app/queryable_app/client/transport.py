"""Translate between the operations' protocol and httpx, for both transports."""

from __future__ import annotations

import os
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import httpx

from queryable_app.client.attempts import FailureKind, Request, Response, TransportFailure, timed_out
from queryable_app.client.exceptions import InvalidRequest

RESPONSE_BYTES_MAX: Final = 256 << 20
"""Above the largest response of a node."""

_CONNECT_SECONDS_MAX: Final = 1.0
_KEEPALIVE_SECONDS: Final = 30.0  # nodes close idle connections after 75

_HOSTS_MAX: Final = 1024
_NOT_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.UnsupportedProtocol, httpx.InvalidURL)
_TIMEOUTS: Final = (httpx.ReadTimeout, httpx.WriteTimeout)


def limits(connections: int) -> httpx.Limits:
    """Return the limits of a pool that keeps all its connections open."""
    return httpx.Limits(
        max_connections=connections,
        max_keepalive_connections=connections,
        keepalive_expiry=_KEEPALIVE_SECONDS,
    )


def timeouts(seconds: float) -> httpx.Timeout:
    """Return the timeouts of an attempt that has `seconds` left."""
    left = max(0.001, seconds)
    return httpx.Timeout(left, connect=min(left, _CONNECT_SECONDS_MAX))


FilePath = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Name the files with which a client verifies nodes, and shows who it is."""

    ca: FilePath | None = None
    cert: FilePath | None = None
    key: FilePath | None = None


def verification(verify: ssl.SSLContext | bool, files: TlsFiles) -> ssl.SSLContext | bool:
    """Return what httpx verifies nodes with. Raises InvalidRequest if the files cannot be used."""
    if files == TlsFiles():
        return verify
    if verify is not True:
        raise InvalidRequest(
            "verify: goes without ca, cert and key", "load the files into your own SSLContext"
        )
    if (files.cert is None) is not (files.key is None):
        raise InvalidRequest("cert, key: a client certificate needs both", "give both or neither")
    try:
        context = ssl.create_default_context(cafile=files.ca)
    except (OSError, ValueError) as error:
        raise InvalidRequest(
            f"ca: {files.ca} cannot be used: {error}", "give a file with certificates in PEM"
        ) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if files.cert is not None:
        try:
            # Never without a password: OpenSSL would prompt for it on the terminal, and wait.
            context.load_cert_chain(files.cert, files.key, password="")
        except (OSError, ValueError) as error:
            advice = "give a certificate and the key that fits it, in PEM and without a password"
            raise InvalidRequest(f"cert, key: {files.cert} cannot be used: {error}", advice) from None
    return context


class VerifiedNames:
    """Name the host that a node's certificate must be valid for: that of the URL which the client was given.

    The certificate of a view names its Service. It cannot name the pods, to which a placement leads: they change.
    """

    def __init__(self, urls: Sequence[str]) -> None:
        self._given = [host for url in urls if (host := _host(url))]

    def extensions(self, address: str) -> dict[str, Any]:
        """Return what httpx needs for a request to this address."""
        if not address.startswith("https:") or not self._given or _host(address) in self._given:
            return {}
        return {"sni_hostname": self._given[0]}


@lru_cache(_HOSTS_MAX)
def _host(address: str) -> str:
    """Return the host of an address. Each request needs it, and parsing takes 7 µs."""
    return httpx.URL(address).host


def headers_of(request: Request) -> dict[str, str]:
    """Return the headers to send. They exclude compression: the size of a decompressed body has no limit."""
    headers = {"accept": request.accept, "accept-encoding": "identity"}
    if request.body is not None:
        headers["content-type"] = "application/json"
    if request.idempotency_key is not None:
        headers["idempotency-key"] = request.idempotency_key
    return headers


def response_of(response: httpx.Response, body: bytes) -> Response:
    """Return httpx's response, whose body was read separately, as a value of the protocol."""
    headers = {name.lower(): text for name, text in response.headers.items()}
    return Response(response.status_code, headers, body)


def transport_failure(error: Exception) -> TransportFailure:
    """Return why httpx got no response."""
    if isinstance(error, _TIMEOUTS):
        return timed_out()
    kind = FailureKind.CONNECTION_LOST
    if isinstance(error, _NOT_SENT):
        kind = FailureKind.NOT_SENT
    elif isinstance(error, httpx.PoolTimeout):
        kind = FailureKind.POOL_EXHAUSTED
    return TransportFailure(kind, f"{kind.value} ({error or type(error).__name__})")
