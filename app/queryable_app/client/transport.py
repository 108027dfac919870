"""What both carriers have in common: how a request goes out through httpx, and what its ends mean."""

from __future__ import annotations

from typing import Final

import httpx

from queryable_app.client.attempts import FailureKind, Request, Response, TransportFailure

RESPONSE_BYTES_MAX: Final = 256 << 20
"""More than a node ever answers at once."""

_CONNECT_SECONDS_MAX: Final = 1.0
_KEEPALIVE_SECONDS: Final = 30.0  # nodes end silent connections after 75

_NOT_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.UnsupportedProtocol, httpx.InvalidURL)
_LATE: Final = (httpx.ReadTimeout, httpx.WriteTimeout)


def limits(connections: int) -> httpx.Limits:
    return httpx.Limits(
        max_connections=connections,
        max_keepalive_connections=connections,
        keepalive_expiry=_KEEPALIVE_SECONDS,
    )


def timeouts(seconds: float) -> httpx.Timeout:
    left = max(0.001, seconds)
    return httpx.Timeout(left, connect=min(left, _CONNECT_SECONDS_MAX))


def headers_of(request: Request) -> dict[str, str]:
    """Nodes do not pack answers, and nobody else shall: what is unpacked has no bound."""
    headers = {"accept": request.accept, "accept-encoding": "identity"}
    if request.body is not None:
        headers["content-type"] = "application/json"
    return headers


def response_of(response: httpx.Response, body: bytes) -> Response:
    return Response(
        response.status_code, {name.lower(): text for name, text in response.headers.items()}, body
    )


def lost(error: Exception | None) -> TransportFailure:
    """None: the answer was cut off here, because it was too late or too large."""
    if error is None or isinstance(error, _LATE):
        return TransportFailure(FailureKind.TIMEOUT, FailureKind.TIMEOUT.value)
    how = FailureKind.CONNECTION_LOST
    if isinstance(error, _NOT_SENT):
        how = FailureKind.NOT_SENT
    elif isinstance(error, httpx.PoolTimeout):
        how = FailureKind.POOL_EXHAUSTED
    return TransportFailure(how, f"{how.value} ({error or type(error).__name__})")
