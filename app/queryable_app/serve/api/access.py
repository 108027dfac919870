"""Refuse what a caller may not do, before a route runs.

Strategy: `ROUTES` names the operation of each path and method. A path that is not in it is refused, so a new route is closed
until it has an operation. The gate authenticates the caller and checks the operation. The routes then restrict what they read to
the caller's key prefixes, with `KeyAccess`; if a route has not done so, the guard refuses its answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import Request

from queryable_app.config.auth import Information, OperationName
from queryable_app.contract import NODE_HEADER
from queryable_app.errors import Failure, Reason, invalid, shown
from queryable_app.policy.access import Access
from queryable_app.policy.certificates import Certificate, decode_certificate
from queryable_app.policy.tokens import TokenRefused, Why
from queryable_app.serve.auth.authenticator import Authenticator, unauthenticated
from queryable_app.serve.node import Node
from queryable_app.serve.peers.peers import FORWARDED_HEADER, Peers
from queryable_app.wire.checked import Malformed

ACCESS: Final = "qt.access"
KEY_ACCESS: Final = "qt.key-access"
ROUTE_PATH: Final = "qt.route-path"
CERTIFICATE: Final = "qt.client-certificate"
CERTIFICATE_HEADER: Final = "qt-client-certificate"
"""What a node that forwards a request has read of the client's certificate."""

NODES_ONLY: Final = "/internal/"
_CHALLENGE: Final = 'Bearer realm="queryable-topic", error="insufficient_scope"'
_NODE: Final = NODE_HEADER.encode()
_FORWARDED: Final = FORWARDED_HEADER.encode()
_CERTIFICATE: Final = CERTIFICATE_HEADER.encode()


@dataclass(frozen=True, slots=True)
class RouteAccess:
    """What a request of a route needs."""

    operation: OperationName | None = None
    """None: any operation at all."""
    information: Information | None = None
    """Which field of `spec.auth.open` decides; then the operation counts for the setting `token`."""
    open: bool = False
    """Whether it is a probe, which needs no token."""


READ: Final = RouteAccess("read")
SCAN: Final = RouteAccess("scan")
WRITE: Final = RouteAccess("write")
_METRICS: Final = RouteAccess("admin", "metrics")
_STATUS: Final = RouteAccess("admin", "status")
_DOCS: Final = RouteAccess("admin", "docs")
_PROBE: Final = RouteAccess(open=True)

ROUTES: Final[Mapping[str, Mapping[str, RouteAccess]]] = {
    "/v1/keys/{key}": {"GET": READ},
    "/v1/keys/{key}/history": {"GET": READ},
    "/v1/entries/{key}": {"GET": READ},
    "/v1/multi-get": {"POST": READ},
    "/v1/windows/{key}": {"GET": READ},
    "/v1/windows/{key}/{start}": {"GET": READ},
    "/v1/entries": {"GET": SCAN},
    "/v1/scan": {"GET": SCAN},
    "/v1/range": {"GET": SCAN},
    "/v1/prefix/{prefix}": {"GET": SCAN},
    "/v1/count": {"GET": SCAN},
    "/v1/filter": {"GET": SCAN},
    "/v1/windows": {"GET": SCAN},
    "/v1/index/{name}": {"GET": SCAN},
    "/v1/index/{name}/groups": {"GET": SCAN},
    "/v1/index/{name}/count": {"GET": SCAN},
    "/v1/top": {"GET": SCAN},
    "/v1/changes": {"GET": RouteAccess("changes")},
    "/v1/records": {"POST": WRITE},
    "/v1/records/{key}": {"DELETE": WRITE},
    "/v1/placement": {"GET": RouteAccess()},
    "/v1/status": {"GET": _STATUS},
    "/metrics": {"GET": _METRICS},
    "/": {"GET": _DOCS},
    "/docs": {"GET": _DOCS},
    "/openapi.json": {"GET": _DOCS},
    "/livez": {"GET": _PROBE},
    "/readyz": {"GET": _PROBE},
}
"""By path and method. The routes below `/internal/` check the token of the nodes."""

_PATTERNS: Final = tuple(
    (re.compile(re.sub(r"\\\{[a-z]+\\\}", "[^/]+", re.escape(path))), path) for path in ROUTES
)


@dataclass(eq=False)
class AccessRefused(Failure):
    """A refusal of the gate, with what the audit log says of it."""

    why: str = "operation"
    operation: str = ""
    subject: str = ""
    key: bytes | None = None


class KeyAccess:
    """The keys on which a caller may do the operation of a request."""

    __slots__ = ("applied", "operation", "prefixes", "subject")

    def __init__(self, operation: str = "", prefixes: tuple[bytes, ...] = (b"",), subject: str = "") -> None:
        self.operation = operation
        self.prefixes = prefixes
        self.subject = subject
        self.applied = prefixes == (b"",)
        """Whether the route has restricted the request to these keys."""

    @property
    def limited(self) -> bool:
        return self.prefixes != (b"",)

    def allows(self, record_key: bytes) -> bool:
        return record_key.startswith(self.prefixes)

    def require(self, record_keys: Iterable[bytes]) -> None:
        """Refuse the request if the caller may not use one of the keys."""
        self.applied = True
        if not self.limited:
            return
        for key in record_keys:
            if not key.startswith(self.prefixes):
                raise refused_key(self, key)

    def one_of_prefixes(self, candidates: Iterable[bytes]) -> bytes | None:
        """Return the only prefix that a request concerns; None: it concerns none. Refuse it if it concerns several."""
        self.applied = True
        found = list(candidates)
        if len(found) > 1:
            raise AccessRefused(
                Reason.FORBIDDEN,
                f"the token allows {self.operation} of the keys with {len(found)} prefixes, and a request reads one of them",
                "name a range within one of them, with /v1/prefix or /v1/range",
                challenge=_CHALLENGE,
                operation=self.operation,
                subject=self.subject,
            )
        return found[0] if found else None


_ALL_KEYS: Final = KeyAccess()


def key_access(request: Request) -> KeyAccess:
    """Return the keys that the request may use: all of them in a view without authentication."""
    access: KeyAccess = request.scope.get(KEY_ACCESS, _ALL_KEYS)
    return access


def refused_key(access: KeyAccess, key: bytes) -> AccessRefused:
    return AccessRefused(
        Reason.FORBIDDEN,
        f"the token does not allow {access.operation} of this key",
        f"use the keys that a rule of spec.auth.rules allows {access.operation} of",
        challenge=_CHALLENGE,
        why="key",
        operation=access.operation,
        subject=access.subject,
        key=key,
    )


def unrestricted_answer() -> AccessRefused:
    """Return the refusal of an answer that its route has not restricted to the caller's keys."""
    return AccessRefused(
        Reason.FORBIDDEN,
        "this read cannot be restricted to the keys that the token allows",
        "read the keys themselves, or add a rule to spec.auth.rules that allows all keys",
        challenge=_CHALLENGE,
    )


def route_of(path: str) -> str | None:
    """Return the path of `ROUTES` that a request's path belongs to."""
    if path in ROUTES:
        return path
    return next((route for pattern, route in _PATTERNS if pattern.fullmatch(path)), None)


class Gate:
    """Authenticate the requests of one node, and check their operations."""

    def __init__(self, node: Node, authenticator: Authenticator) -> None:
        self._authenticator = authenticator
        self._peers = node.peers
        self._spec = authenticator.spec
        self.uses_certificates = authenticator.spec.uses_certificates

    def needs_token(self, path: str, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Return whether a request is refused without a token of a caller."""
        if path.startswith(NODES_ONLY):
            return False
        wanted = ROUTES.get(path, {}).get("GET")
        if wanted is None:
            return True
        if wanted.open:
            return False
        if wanted.information is None:
            return True
        return self._spec.access_to(wanted.information) == "token" and not has_node_token(
            headers, self._peers
        )

    async def admit(self, scope: dict[str, Any]) -> None:
        """Put into the scope what the caller may do. Raise Failure if that does not include this request."""
        path: str = scope["path"]
        if path.startswith(NODES_ONLY):
            return
        route = route_of(path)
        wanted = None if route is None else ROUTES[route].get(scope["method"])
        if wanted is not None and wanted.open:
            return
        if (
            wanted is not None
            and wanted.information is not None
            and self._admit_to(wanted.information, scope)
        ):
            return
        access = await self._authenticate(scope)
        if route is None:
            raise AccessRefused(
                Reason.NO_SUCH_RESOURCE,
                f"{shown(path)} is no path that a token allows",
                f"There are {', '.join(ROUTES)}",
            )
        if wanted is None:
            raise invalid(
                "method",
                f"{shown(scope['method'])} is not allowed at this path",
                f"use {', '.join(ROUTES[route])}",
            )
        self._check(access, wanted, scope)
        scope[ROUTE_PATH] = route

    def _admit_to(self, information: Information, scope: dict[str, Any]) -> bool:
        """Return whether information about the node needs no token. A node or the operator always gets it."""
        setting = self._spec.access_to(information)
        if setting == "open" or has_node_token(scope["headers"], self._peers):
            return True
        if setting == "off":
            raise AccessRefused(
                Reason.FORBIDDEN,
                f"spec.auth.open.{information} is off",
                "set it to token or open to read it",
                operation="admin",
            )
        return False

    def _check(self, access: Access, wanted: RouteAccess, scope: dict[str, Any]) -> None:
        operation = wanted.operation
        if operation is None:
            if not access.prefixes:
                raise _missing_rule("anything", access)
            return
        if not access.may(operation):
            raise _missing_rule(operation, access)
        scope[KEY_ACCESS] = KeyAccess(operation, access.prefixes[operation], access.subject)

    def certificate_of(
        self, headers: Iterable[tuple[bytes, bytes]], shown: Certificate | None
    ) -> Certificate | None:
        """Return the certificate of the caller: that of the connection, or what a node that forwards the request vouches for."""
        given = [value for name, value in headers if name == _CERTIFICATE]
        if not given:
            return shown
        marks = [value.decode("latin-1") for name, value in headers if name == _FORWARDED]
        try:
            if len(given) == len(marks) == 1 and self._peers.accepts_token(marks[0]):
                return decode_certificate(given[0])
        except Malformed:
            pass
        raise AccessRefused(
            Reason.FORBIDDEN,
            f"{CERTIFICATE_HEADER}: only nodes of the view send it",
            "leave it out, and show the certificate in the handshake",
            why="certificate",
        )

    async def _authenticate(self, scope: dict[str, Any]) -> Access:
        try:
            certificate = self.certificate_of(scope["headers"], scope.get(CERTIFICATE))
            authorization = authorization_of(scope["headers"])
            return await self._authenticator.authenticate_with_fetch(authorization, certificate)
        except TokenRefused as refusal:
            raise refused_token(refusal) from None


def certificate_line(request: Request) -> bytes:
    """Return the header line with the client's certificate, for the node that a request is forwarded to, or nothing."""
    certificate: Certificate | None = request.scope.get(CERTIFICATE)
    return b"" if certificate is None else b"%b: %b\r\n" % (_CERTIFICATE, certificate.encoded)


def authorization_of(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Return the value of the `Authorization` header. Raise TokenRefused if there are several."""
    given = [value for name, value in headers if name == b"authorization"]
    if len(given) > 1:
        raise TokenRefused(Why.MALFORMED, "the request has several Authorization headers")
    return given[0].decode("latin-1") if given else None


def refused_token(refusal: TokenRefused) -> AccessRefused:
    failure = unauthenticated(refusal)
    return AccessRefused(
        failure.reason, failure.detail, failure.advice, challenge=failure.challenge, why=refusal.why.value
    )


def has_node_token(headers: Iterable[tuple[bytes, bytes]], peers: Peers) -> bool:
    """Return whether a node of the view, or its operator, sends a request."""
    return any(name == _NODE and peers.accepts_token(value.decode("latin-1")) for name, value in headers)


def _missing_rule(operation: str, access: Access) -> AccessRefused:
    return AccessRefused(
        Reason.FORBIDDEN,
        f"no rule allows {operation} to the bearer of this token",
        f"add a rule to spec.auth.rules with `allow: [{'read' if operation == 'anything' else operation}]` for a claim of "
        "the token",
        challenge=_CHALLENGE,
        operation=operation,
        subject=access.subject,
    )
