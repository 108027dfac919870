"""Parse `spec.tls` into a frozen value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from queryable_app.config.spec_fields import one_of

ClientAuth = Literal["none", "request", "require"]
CERTIFICATE_FILE: Final = "tls.crt"
KEY_FILE: Final = "tls.key"
CA_FILE: Final = "ca.crt"


@dataclass(frozen=True, slots=True)
class Tls:
    """Configure how nodes speak TLS."""

    secret_name: str
    """The Secret with `tls.crt`, `tls.key` and `ca.crt`."""

    client_auth: ClientAuth = "none"
    """Whether clients show a certificate of `ca.crt`: never, if they like, or always."""


def parse_tls(spec: Mapping[str, Any]) -> Tls | None:
    """Return `spec.tls`, or None if nodes speak plain HTTP."""
    tls = spec.get("tls")
    if not tls:
        return None
    client_auth: ClientAuth = one_of(ClientAuth, tls.get("clientAuth", "none"), "spec.tls.clientAuth")
    return Tls(str(tls["secretRef"]["name"]), client_auth)
